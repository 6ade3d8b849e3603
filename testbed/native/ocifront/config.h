/* The front's configuration: a word and its arguments on each line. It is the file that the
 * variable VGPU_OCI_FRONT_CONFIG names, else <program>.conf beside the program, else
 * /etc/vgpu-testbed/front.conf.
 *
 *     # comment
 *     runtime /usr/sbin/runc        the real runtime (required)
 *     argument --rootless=true      put before the caller's arguments; may be repeated
 *     cgroups drop                  or keep (default)
 *     oom-score drop                or clamp (default)
 *     image testbed/base:1f2e3d     the binds that follow are for containers of this image;
 *     bind /source /destination     a name that ends with * stands for all that begin so
 *
 * Words are separated by blanks, so no path may hold one.
 */
#ifndef OCIFRONT_CONFIG_H
#define OCIFRONT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

struct bind {
    const char *source;
    const char *destination;
    struct bind *next;
};

struct image {
    const char *name;
    struct bind *binds;
    struct image *next;
};

struct config {
    char *text; /* everything below points into it */
    const char *runtime;
    const char **arguments;
    size_t argument_count;
    bool drop_cgroups;
    bool drop_oom_score;
    struct image *images;
};

/* Takes the text over (malloc'ed, ended with NUL). False: `error` tells line and cause. */
bool config_parse(struct config *config, char *text, char *error, size_t error_size);
void config_release(struct config *config);

/* The binds of an image as the runtime's annotation names it; NULL if none are set. */
const struct bind *config_binds(const struct config *config, const char *image);

#endif
