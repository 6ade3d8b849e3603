/* The changes to a container's configuration. */
#ifndef OCIFRONT_EDIT_H
#define OCIFRONT_EDIT_H

#include "config.h"
#include "json.h"

/* Changes the configuration of a container (config.json). False without memory. */
bool edit_container(struct json_document *document, const struct config *config);
/* Changes one process (the file of `exec --process`, or a container's `process`). */
bool edit_process(struct json_document *document, struct json *process,
                  const struct config *config);

#endif
