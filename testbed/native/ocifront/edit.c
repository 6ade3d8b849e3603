#include "edit.h"

#include <stdlib.h>
#include <string.h>

#include "host.h"

static bool is(struct json_document *document, const struct json *value, const char *content) {
    const char *text = json_content(document, value);
    return text && strcmp(text, content) == 0;
}

/* --- process ------------------------------------------------------------- */

/* The runtime fails with EPERM on any capability outside its own bounding set. */
static void drop_capabilities(struct json_document *document, struct json *process) {
    struct json *sets = json_get(process, "capabilities");
    if (!sets || sets->kind != JSON_OBJECT) return;
    for (struct json *set = sets->child; set; set = set->next) {
        if (set->kind != JSON_ARRAY) continue;
        for (struct json **at = &set->child; *at;) {
            const char *name = json_content(document, *at);
            if (name && !host_may_give(name))
                *at = (*at)->next;
            else
                at = &(*at)->next;
        }
    }
}

static bool lower_limits(struct json_document *document, struct json *process) {
    struct json *limits = json_get(process, "rlimits");
    if (!limits || limits->kind != JSON_ARRAY) return true;
    for (struct json *limit = limits->child; limit; limit = limit->next) {
        const char *name = json_content(document, json_get(limit, "type"));
        struct json *hard = json_get(limit, "hard"), *soft = json_get(limit, "soft");
        unsigned long long wanted, wanted_soft;
        if (!name || !json_unsigned(hard, &wanted)) continue;
        unsigned long long given = host_hard_limit(name, wanted);
        if (given == wanted) continue;
        if (!json_set_unsigned(document, hard, given)) return false;
        if (json_unsigned(soft, &wanted_soft) && wanted_soft > given &&
            !json_set_unsigned(document, soft, given))
            return false;
    }
    return true;
}

bool edit_process(struct json_document *document, struct json *process,
                  const struct config *config) {
    if (!process || process->kind != JSON_OBJECT) return true;
    drop_capabilities(document, process);
    if (config->drop_oom_score) json_remove(process, "oomScoreAdj");
    struct json *score = json_get(process, "oomScoreAdj");
    long long wanted, own = score ? host_oom_score() : 0;
    if (json_signed(score, &wanted) && wanted < own && !json_set_number(document, score, own))
        return false;
    return lower_limits(document, process);
}

/* --- mounts -------------------------------------------------------------- */

/* devpts takes `gid=5` from containerd's default; mounting fails where 5 is not mapped. */
static void drop_unmapped_gid(struct json_document *document, struct json *mount) {
    struct json *options = json_get(mount, "options");
    if (!options || options->kind != JSON_ARRAY) return;
    for (struct json **at = &options->child; *at;) {
        const char *option = json_content(document, *at);
        char *end = NULL;
        bool drop = option && strncmp(option, "gid=", 4) == 0 &&
                    !host_has_gid(strtoull(option + 4, &end, 10)) && end && !*end;
        if (drop)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
}

static struct json *bind_mount(struct json_document *document, const struct bind *bind) {
    static const char *const options[] = {"rbind", "ro", "nosuid", "nodev"};
    struct json *mount = json_new(document, JSON_OBJECT);
    struct json *list = json_new(document, JSON_ARRAY);
    if (!mount || !list) return NULL;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!json_append(document, list, NULL, json_new_string(document, options[i]))) return NULL;
    bool good =
        json_append(document, mount, "destination", json_new_string(document, bind->destination)) &&
        json_append(document, mount, "type", json_new_string(document, "bind")) &&
        json_append(document, mount, "source", json_new_string(document, bind->source)) &&
        json_append(document, mount, "options", list);
    return good ? mount : NULL;
}

/* Before the first other bind: what kubelet and the device plugin mount may lie below. */
static bool insert_binds(struct json_document *document, struct json *mounts,
                         const struct bind *binds) {
    struct json **at = &mounts->child;
    while (*at && !is(document, json_get(*at, "type"), "bind")) at = &(*at)->next;
    for (; binds; binds = binds->next) {
        struct json *mount = bind_mount(document, binds);
        if (!mount) return false;
        mount->next = *at;
        *at = mount;
        at = &mount->next;
    }
    return true;
}

static bool edit_mounts(struct json_document *document, const struct config *config) {
    struct json *mounts = json_get(document->root, "mounts");
    struct json *notes = json_get(document->root, "annotations");
    const struct bind *binds = NULL;
    if (is(document, json_get(notes, "io.kubernetes.cri.container-type"), "container")) {
        const char *image =
            json_content(document, json_get(notes, "io.kubernetes.cri.image-name"));
        if (image) binds = config_binds(config, image);
    }
    if (!mounts && binds) {
        mounts = json_new(document, JSON_ARRAY);
        if (!json_append(document, document->root, "mounts", mounts)) return false;
    }
    if (!mounts || mounts->kind != JSON_ARRAY) return true;
    for (struct json **at = &mounts->child; *at;) {
        struct json *type = json_get(*at, "type");
        if (config->drop_cgroups &&
            (is(document, type, "cgroup") || is(document, type, "cgroup2"))) {
            *at = (*at)->next;
            continue;
        }
        if (is(document, type, "devpts")) drop_unmapped_gid(document, *at);
        at = &(*at)->next;
    }
    return insert_binds(document, mounts, binds);
}

bool edit_container(struct json_document *document, const struct config *config) {
    struct json *linux_part = json_get(document->root, "linux");
    if (config->drop_cgroups) {
        json_remove(linux_part, "cgroupsPath");
        json_remove(linux_part, "resources");
    }
    return edit_mounts(document, config) &&
           edit_process(document, json_get(document->root, "process"), config) &&
           !document->error;
}
