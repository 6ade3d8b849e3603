/* A JSON reader and writer that keeps what it does not understand.
 *
 * Scalars and keys stay the very text they were read as, so numbers of any size
 * and escapes of any kind survive. Only white space between tokens is lost.
 */
#ifndef OCIFRONT_JSON_H
#define OCIFRONT_JSON_H

#include <stdbool.h>
#include <stddef.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    const char *text; /* of a scalar; a string's with its quotes */
    size_t length;
    const char *key; /* of an object's member, with its quotes */
    size_t key_length;
    struct json *child; /* first element or member */
    struct json *next;
};

struct json_block;

/* Owns every node made for it; all end with json_release. */
struct json_document {
    struct json *root;
    struct json_block *blocks;
    const char *error; /* set when something failed; a literal */
    size_t error_at;   /* offset in the text */
};

/* Reads one value. The text must outlive the document. False: see error. */
bool json_parse(struct json_document *document, const char *text, size_t length);
void json_release(struct json_document *document);

/* The member of that name, or NULL. Of several the last one, as Go reads it. */
struct json *json_get(const struct json *object, const char *name);
/* Takes out every member of that name; tells whether there was one. */
bool json_remove(struct json *object, const char *name);

/* The string's content (NUL ended, owned by the document); NULL if the value is no
 * string, holds U+0000 or an escape that stands for nothing. */
const char *json_content(struct json_document *document, const struct json *value);
bool json_unsigned(const struct json *value, unsigned long long *out);
bool json_signed(const struct json *value, long long *out);

/* New nodes; NULL without memory (and error set). Text is copied. */
struct json *json_new(struct json_document *document, enum json_kind kind);
struct json *json_new_string(struct json_document *document, const char *content);
bool json_set_number(struct json_document *document, struct json *value, long long number);
bool json_set_unsigned(struct json_document *document, struct json *value,
                       unsigned long long number);
/* Appends to an array (name NULL) or object. False without memory. */
bool json_append(struct json_document *document, struct json *parent, const char *name,
                 struct json *value);

/* The text of a value; malloc'ed, NULL without memory. */
char *json_write(const struct json *value, size_t *length);

#endif
