/* The runtime's command line, as far as the front must understand it. */
#ifndef OCIFRONT_CALL_H
#define OCIFRONT_CALL_H

#include <stdbool.h>

struct call {
    const char *command; /* NULL if there is none */
    const char *bundle;  /* of create, run and restore; "." if not given */
    const char *config;  /* crun's other name for a bundle's config.json; NULL if not given */
    const char *process; /* of exec; NULL if not given */
    const char *log;     /* file that the caller reads errors from */
    bool log_is_json;
};

struct call call_read(char **argv);

#endif
