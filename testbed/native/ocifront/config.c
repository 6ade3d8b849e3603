#define _POSIX_C_SOURCE 200809L
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 4 };

struct parser {
    struct config *config;
    struct image **next_image;
    struct image *image;
    struct bind **next_bind;
};

static size_t split(char *line, char *words[WORDS_MAX]) {
    size_t count = 0;
    char *rest = line;
    for (char *word; count < WORDS_MAX && (word = strtok_r(rest, " \t\r", &rest));)
        words[count++] = word;
    return count;
}

static const char *add_argument(struct config *config, const char *word) {
    const char **grown =
        realloc(config->arguments, (config->argument_count + 1) * sizeof *config->arguments);
    if (!grown) return "out of memory";
    config->arguments = grown;
    config->arguments[config->argument_count++] = word;
    return NULL;
}

static const char *add_image(struct parser *p, const char *name) {
    struct image *image = calloc(1, sizeof *image);
    if (!image) return "out of memory";
    image->name = name;
    *p->next_image = p->image = image;
    p->next_image = &image->next;
    p->next_bind = &image->binds;
    return NULL;
}

static const char *add_bind(struct parser *p, const char *source, const char *destination) {
    if (!p->image) return "bind before the first image";
    if (source[0] != '/' || destination[0] != '/') return "paths must be absolute";
    struct bind *bind = calloc(1, sizeof *bind);
    if (!bind) return "out of memory";
    bind->source = source;
    bind->destination = destination;
    *p->next_bind = bind;
    p->next_bind = &bind->next;
    return NULL;
}

static const char *choose(const char *word, const char *yes, const char *no, bool *out) {
    if (strcmp(word, yes) != 0 && strcmp(word, no) != 0) return "unknown choice";
    *out = strcmp(word, yes) == 0;
    return NULL;
}

/* NULL if the line is good. */
static const char *read_line(struct parser *p, char *words[WORDS_MAX], size_t count) {
    struct config *config = p->config;
    const char *word = words[0];
    if (strcmp(word, "bind") == 0)
        return count == 3 ? add_bind(p, words[1], words[2]) : "bind takes a source and a destination";
    if (count != 2) return "one word and its argument were expected";
    if (strcmp(word, "runtime") == 0) {
        config->runtime = words[1];
        return words[1][0] == '/' ? NULL : "paths must be absolute";
    }
    if (strcmp(word, "argument") == 0) return add_argument(config, words[1]);
    if (strcmp(word, "cgroups") == 0)
        return choose(words[1], "drop", "keep", &config->drop_cgroups);
    if (strcmp(word, "oom-score") == 0)
        return choose(words[1], "drop", "clamp", &config->drop_oom_score);
    if (strcmp(word, "image") == 0) return add_image(p, words[1]);
    return "unknown word";
}

bool config_parse(struct config *config, char *text, char *error, size_t error_size) {
    *config = (struct config){.text = text};
    struct parser p = {.config = config, .next_image = &config->images};
    int number = 0;
    for (char *line = text; line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        number++;
        char *words[WORDS_MAX];
        size_t count = split(line, words);
        if (count && words[0][0] != '#') {
            const char *why = read_line(&p, words, count);
            if (why) {
                snprintf(error, error_size, "line %d (%s): %s", number, words[0], why);
                return false;
            }
        }
        line = end ? end + 1 : NULL;
    }
    if (!config->runtime) {
        snprintf(error, error_size, "no runtime is named");
        return false;
    }
    return true;
}

void config_release(struct config *config) {
    while (config->images) {
        struct image *image = config->images;
        while (image->binds) {
            struct bind *bind = image->binds;
            image->binds = bind->next;
            free(bind);
        }
        config->images = image->next;
        free(image);
    }
    free(config->arguments);
    free(config->text);
    *config = (struct config){0};
}

/* containerd shows the name as the pod wrote it: with or without the default registry. */
static const char *short_name(const char *image) {
    static const char *const prefixes[] = {"docker.io/", "library/"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(image, prefixes[i], strlen(prefixes[i])) == 0) image += strlen(prefixes[i]);
    return image;
}

const struct bind *config_binds(const struct config *config, const char *image) {
    const char *wanted = short_name(image);
    for (const struct image *at = config->images; at; at = at->next) {
        const char *name = short_name(at->name);
        size_t size = strlen(name);
        bool prefix = size && name[size - 1] == '*';
        if (prefix ? strncmp(wanted, name, size - 1) == 0 : strcmp(wanted, name) == 0)
            return at->binds;
    }
    return NULL;
}
