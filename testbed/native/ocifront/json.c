#include "json.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Deeper than any container's configuration, shallow enough for the stack. */
enum { DEPTH_MAX = 128 };

struct json_block {
    struct json_block *next;
    max_align_t data[];
};

static void *take(struct json_document *document, size_t size) {
    if (size > SIZE_MAX - sizeof(struct json_block)) return NULL;
    struct json_block *block = calloc(1, sizeof *block + size);
    if (!block) {
        document->error = "out of memory";
        return NULL;
    }
    block->next = document->blocks;
    document->blocks = block;
    return block->data;
}

void json_release(struct json_document *document) {
    while (document->blocks) {
        struct json_block *block = document->blocks;
        document->blocks = block->next;
        free(block);
    }
    document->root = NULL;
}

/* --- reading ------------------------------------------------------------- */

struct reader {
    struct json_document *document;
    const char *text;
    size_t length;
    size_t at;
};

static struct json *fail(struct reader *r, const char *why) {
    if (!r->document->error) {
        r->document->error = why;
        r->document->error_at = r->at;
    }
    return NULL;
}

/* -1 at the end. */
static int peek(const struct reader *r) {
    return r->at < r->length ? (unsigned char)r->text[r->at] : -1;
}

static void skip_space(struct reader *r) {
    while (r->at < r->length && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at]) r->at++;
}

static bool is_hex(int c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Passes over a string, quotes included. */
static bool scan_string(struct reader *r) {
    if (peek(r) != '"') return fail(r, "a string was expected"), false;
    r->at++;
    for (int c; (c = peek(r)) != '"'; r->at++) {
        if (c < 0) return fail(r, "the string does not end"), false;
        if (c < 0x20) return fail(r, "control character in a string"), false;
        if (c != '\\') continue;
        r->at++;
        c = peek(r);
        if (c == 'u') {
            for (int i = 0; i < 4; i++) {
                r->at++;
                if (!is_hex(peek(r))) return fail(r, "four hexadecimal digits were expected"), false;
            }
        } else if (c <= 0 || !strchr("\"\\/bfnrt", c)) {
            return fail(r, "unknown escape"), false;
        }
    }
    r->at++;
    return true;
}

static bool scan_digits(struct reader *r) {
    if (peek(r) < '0' || peek(r) > '9') return fail(r, "a digit was expected"), false;
    while (peek(r) >= '0' && peek(r) <= '9') r->at++;
    return true;
}

static bool scan_number(struct reader *r) {
    if (peek(r) == '-') r->at++;
    if (peek(r) == '0')
        r->at++;
    else if (!scan_digits(r))
        return false;
    if (peek(r) == '.') {
        r->at++;
        if (!scan_digits(r)) return false;
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        if (peek(r) == '+' || peek(r) == '-') r->at++;
        if (!scan_digits(r)) return false;
    }
    return true;
}

static bool scan_word(struct reader *r, const char *word) {
    size_t size = strlen(word);
    if (r->length - r->at < size || memcmp(r->text + r->at, word, size) != 0)
        return fail(r, "a value was expected"), false;
    r->at += size;
    return true;
}

static struct json *read_value(struct reader *r, int depth);

/* The inside of an array or object; the opening bracket is passed already. */
static bool read_members(struct reader *r, struct json *parent, int depth) {
    int close = parent->kind == JSON_ARRAY ? ']' : '}';
    struct json **end = &parent->child;
    skip_space(r);
    if (peek(r) == close) {
        r->at++;
        return true;
    }
    for (;;) {
        const char *key = NULL;
        size_t key_length = 0;
        skip_space(r);
        if (parent->kind == JSON_OBJECT) {
            size_t from = r->at;
            if (!scan_string(r)) return false;
            key = r->text + from;
            key_length = r->at - from;
            skip_space(r);
            if (peek(r) != ':') return fail(r, "a colon was expected"), false;
            r->at++;
        }
        struct json *value = read_value(r, depth + 1);
        if (!value) return false;
        value->key = key;
        value->key_length = key_length;
        *end = value;
        end = &value->next;
        skip_space(r);
        int c = peek(r);
        if (c != ',' && c != close) return fail(r, "a comma or the end was expected"), false;
        r->at++;
        if (c == close) return true;
    }
}

static struct json *read_value(struct reader *r, int depth) {
    if (depth > DEPTH_MAX) return fail(r, "nested too deep");
    skip_space(r);
    struct json *value = json_new(r->document, JSON_NULL);
    if (!value) return NULL;
    size_t from = r->at;
    bool good;
    switch (peek(r)) {
    case '{':
    case '[':
        value->kind = peek(r) == '{' ? JSON_OBJECT : JSON_ARRAY;
        r->at++;
        return read_members(r, value, depth) ? value : NULL;
    case '"':
        value->kind = JSON_STRING;
        good = scan_string(r);
        break;
    case 't':
        value->kind = JSON_BOOL;
        good = scan_word(r, "true");
        break;
    case 'f':
        value->kind = JSON_BOOL;
        good = scan_word(r, "false");
        break;
    case 'n':
        good = scan_word(r, "null");
        break;
    case -1:
        return fail(r, "a value was expected");
    default:
        value->kind = JSON_NUMBER;
        good = scan_number(r);
    }
    value->text = r->text + from;
    value->length = r->at - from;
    return good ? value : NULL;
}

bool json_parse(struct json_document *document, const char *text, size_t length) {
    *document = (struct json_document){0};
    struct reader r = {.document = document, .text = text, .length = length};
    struct json *root = read_value(&r, 0);
    if (!root) return false;
    skip_space(&r);
    if (r.at != length) return fail(&r, "text after the value"), false;
    document->root = root;
    return true;
}

/* --- looking ------------------------------------------------------------- */

static int hex4(const char *at) {
    char digits[5] = {at[0], at[1], at[2], at[3], 0};
    return (int)strtol(digits, NULL, 16);
}

static char *put_utf8(char *to, unsigned code) {
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *to++ = (char)(0xF0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Decodes a scanned string into `to`, which has room for its length; false if it has no
 * content as a C string. The text has been scanned, so escapes are whole. */
static bool decode(const char *text, size_t length, char *to) {
    const char *end = text + length - 1;
    for (const char *at = text + 1; at < end; at++) {
        if (*at != '\\') {
            *to++ = *at;
            continue;
        }
        at++;
        switch (*at) {
        case 'b': *to++ = '\b'; continue;
        case 'f': *to++ = '\f'; continue;
        case 'n': *to++ = '\n'; continue;
        case 'r': *to++ = '\r'; continue;
        case 't': *to++ = '\t'; continue;
        case 'u': break;
        default: *to++ = *at; continue;
        }
        unsigned code = (unsigned)hex4(at + 1);
        at += 4;
        if (code == 0 || (code >= 0xDC00 && code < 0xE000)) return false;
        if (code >= 0xD800 && code < 0xDC00) {
            if (end - at < 7 || at[1] != '\\' || at[2] != 'u') return false;
            unsigned low = (unsigned)hex4(at + 3);
            if (low < 0xDC00 || low >= 0xE000) return false;
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            at += 6;
        }
        to = put_utf8(to, code);
    }
    *to = 0;
    return true;
}

static bool key_is(const struct json *member, const char *name) {
    size_t size = strlen(name);
    if (!memchr(member->key, '\\', member->key_length))
        return member->key_length == size + 2 && memcmp(member->key + 1, name, size) == 0;
    char content[256]; /* longer than any name that is asked for */
    if (member->key_length > sizeof content) return false;
    return decode(member->key, member->key_length, content) && strcmp(content, name) == 0;
}

struct json *json_get(const struct json *object, const char *name) {
    if (!object || object->kind != JSON_OBJECT) return NULL;
    struct json *found = NULL;
    for (struct json *member = object->child; member; member = member->next)
        if (key_is(member, name)) found = member;
    return found;
}

bool json_remove(struct json *object, const char *name) {
    bool found = false;
    if (!object || object->kind != JSON_OBJECT) return false;
    for (struct json **at = &object->child; *at;) {
        if (key_is(*at, name)) {
            *at = (*at)->next;
            found = true;
        } else {
            at = &(*at)->next;
        }
    }
    return found;
}

const char *json_content(struct json_document *document, const struct json *value) {
    if (!value || value->kind != JSON_STRING) return NULL;
    char *content = take(document, value->length);
    return content && decode(value->text, value->length, content) ? content : NULL;
}

/* A number's text in a buffer that ends with NUL. */
static bool number_text(const struct json *value, char *to, size_t size) {
    if (!value || value->kind != JSON_NUMBER || value->length >= size) return false;
    memcpy(to, value->text, value->length);
    to[value->length] = 0;
    return true;
}

bool json_unsigned(const struct json *value, unsigned long long *out) {
    char text[32], *end;
    if (!number_text(value, text, sizeof text) || text[0] == '-') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return !errno && !*end;
}

bool json_signed(const struct json *value, long long *out) {
    char text[32], *end;
    if (!number_text(value, text, sizeof text)) return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && !*end;
}

/* --- making -------------------------------------------------------------- */

struct json *json_new(struct json_document *document, enum json_kind kind) {
    struct json *value = take(document, sizeof *value);
    if (value) value->kind = kind;
    return value;
}

/* The content as JSON text with quotes. */
static const char *quoted(struct json_document *document, const char *content, size_t *length) {
    char *text = take(document, strlen(content) * 6 + 3), *to = text;
    if (!text) return NULL;
    *to++ = '"';
    for (const char *at = content; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c < 0x20) {
            to += sprintf(to, "\\u%04x", c);
        } else {
            if (c == '"' || c == '\\') *to++ = '\\';
            *to++ = *at;
        }
    }
    *to++ = '"';
    *length = (size_t)(to - text);
    return text;
}

struct json *json_new_string(struct json_document *document, const char *content) {
    struct json *value = json_new(document, JSON_STRING);
    if (!value) return NULL;
    value->text = quoted(document, content, &value->length);
    return value->text ? value : NULL;
}

static bool set_text(struct json_document *document, struct json *value, const char *text) {
    char *copy = take(document, strlen(text) + 1);
    if (!copy) return false;
    value->kind = JSON_NUMBER;
    value->text = strcpy(copy, text);
    value->length = strlen(text);
    value->child = NULL;
    return true;
}

bool json_set_number(struct json_document *document, struct json *value, long long number) {
    char text[32];
    snprintf(text, sizeof text, "%lld", number);
    return set_text(document, value, text);
}

bool json_set_unsigned(struct json_document *document, struct json *value,
                       unsigned long long number) {
    char text[32];
    snprintf(text, sizeof text, "%llu", number);
    return set_text(document, value, text);
}

bool json_append(struct json_document *document, struct json *parent, const char *name,
                 struct json *value) {
    if (!value) return false;
    if (name) {
        value->key = quoted(document, name, &value->key_length);
        if (!value->key) return false;
    }
    struct json **end = &parent->child;
    while (*end) end = &(*end)->next;
    *end = value;
    return true;
}

/* --- writing ------------------------------------------------------------- */

/* Writes to `to`, or only counts where that is NULL. */
static size_t put(char *to, size_t at, const char *text, size_t length) {
    if (to && length) memcpy(to + at, text, length);
    return at + length;
}

static size_t write_value(const struct json *value, char *to, size_t at) {
    if (value->kind != JSON_ARRAY && value->kind != JSON_OBJECT)
        return put(to, at, value->text, value->length);
    bool array = value->kind == JSON_ARRAY;
    at = put(to, at, array ? "[" : "{", 1);
    for (const struct json *member = value->child; member; member = member->next) {
        if (member != value->child) at = put(to, at, ",", 1);
        if (!array) {
            at = put(to, at, member->key, member->key_length);
            at = put(to, at, ":", 1);
        }
        at = write_value(member, to, at);
    }
    return put(to, at, array ? "]" : "}", 1);
}

char *json_write(const struct json *value, size_t *length) {
    *length = write_value(value, NULL, 0);
    char *text = malloc(*length + 1);
    if (!text) return NULL;
    write_value(value, text, 0);
    text[*length] = 0;
    return text;
}
