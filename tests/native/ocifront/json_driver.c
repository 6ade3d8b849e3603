/* Reads a JSON text on standard input and writes it back: what the tests drive json.c with.
 *
 *     json_driver            the text as read and written; 3 and the cause if it is none
 *     json_driver NAME       the same without the root's members of that name
 */
#include <stdio.h>
#include <stdlib.h>

#include "json.h"

int main(int argc, char **argv) {
    size_t room = 1 << 16, length = 0, n;
    char *text = malloc(room);
    if (!text) return 1;
    while ((n = fread(text + length, 1, room - length, stdin)) > 0) {
        length += n;
        if (length == room) {
            char *grown = realloc(text, room *= 2);
            if (!grown) return 1;
            text = grown;
        }
    }
    /* Exactly as large as the text: the sanitizer sees any look behind its end. */
    char *exact = malloc(length ? length : 1);
    if (!exact) return 1;
    for (size_t i = 0; i < length; i++) exact[i] = text[i];
    free(text);
    struct json_document document;
    int code = 0;
    if (!json_parse(&document, exact, length)) {
        fprintf(stderr, "%s at %zu\n", document.error, document.error_at);
        code = 3;
    } else {
        if (argc > 1) json_remove(document.root, argv[1]);
        size_t size;
        char *out = json_write(document.root, &size);
        fwrite(out, 1, size, stdout);
        free(out);
        const char *content = json_content(&document, document.root);
        if (content) fprintf(stderr, "%s", content);
    }
    json_release(&document);
    free(exact);
    return code;
}
