/* vgpu-oci-front: stands before runc or crun, under the name that containerd, Docker or
 * Podman calls.
 *
 * What a host cannot give a container is taken out of its configuration, what the host
 * lends to an image is put in; then runc takes over with the caller's arguments. Silent
 * unless something is wrong; then one line to stderr and to runc's log, where containerd
 * and with it kubelet find it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "call.h"
#include "config.h"
#include "edit.h"
#include "json.h"

#define CONFIG_FILE "/etc/vgpu-testbed/front.conf"
#define CONFIG_VARIABLE "VGPU_OCI_FRONT_CONFIG"

enum { FILE_MAX = 16 << 20 };

static struct call call;

/* One entry as runc writes it. */
static void log_line(const char *message) {
    FILE *log = call.log ? fopen(call.log, "ae") : NULL;
    if (!log) return;
    char when[32];
    time_t now = time(NULL);
    struct tm parts;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    if (call.log_is_json) {
        struct json_document document = {0};
        struct json *text = json_new_string(&document, message);
        if (text)
            fprintf(log, "{\"level\":\"error\",\"msg\":%.*s,\"time\":\"%s\"}\n", (int)text->length,
                    text->text, when);
        json_release(&document);
    } else {
        fprintf(log, "time=\"%s\" level=error msg=\"%s\"\n", when, message);
    }
    fclose(log);
}

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    char message[1024] = "vgpu-oci-front: ";
    size_t used = strlen(message);
    va_list values;
    va_start(values, format);
    vsnprintf(message + used, sizeof message - used, format, values);
    va_end(values);
    fprintf(stderr, "%s\n", message);
    log_line(message);
    exit(1);
}

/* The whole file, ended with NUL. */
static char *read_file(const char *path, size_t *length, mode_t *mode) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) die("cannot open %s: %s", path, strerror(errno));
    struct stat status;
    if (fstat(fd, &status)) die("cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode) || status.st_size > FILE_MAX)
        die("cannot read %s: not a file of at most %d MiB", path, FILE_MAX >> 20);
    size_t size = (size_t)status.st_size, got = 0;
    char *text = malloc(size + 1);
    if (!text) die("cannot read %s: out of memory", path);
    while (got < size) {
        ssize_t n = read(fd, text + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die("cannot read %s: %s", path, strerror(errno));
        if (n == 0) break;
        got += (size_t)n;
    }
    close(fd);
    text[got] = 0;
    *length = got;
    *mode = status.st_mode & 07777;
    return text;
}

/* Beside the old file and renamed over it: the runtime never sees half of one. */
static void replace_file(const char *path, const char *text, size_t length, mode_t mode) {
    char *part;
    if (asprintf(&part, "%s.XXXXXX", path) < 0) die("cannot write %s: out of memory", path);
    int fd = mkostemp(part, O_CLOEXEC);
    if (fd < 0) die("cannot write %s: %s", part, strerror(errno));
    size_t put = 0;
    bool good = fchmod(fd, mode) == 0;
    while (good && put < length) {
        ssize_t n = write(fd, text + put, length - put);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            good = false;
        else
            put += (size_t)n;
    }
    good = good && close(fd) == 0 && rename(part, path) == 0;
    if (!good) {
        int why = errno;
        unlink(part);
        die("cannot write %s: %s", path, strerror(why));
    }
    free(part);
}

static void edit_file(const char *path, bool container, const struct config *config) {
    size_t length, written;
    mode_t mode;
    char *text = read_file(path, &length, &mode);
    struct json_document document;
    if (!json_parse(&document, text, length))
        die("cannot read %s: %s at byte %zu", path, document.error, document.error_at);
    if (document.root->kind != JSON_OBJECT) die("cannot read %s: not a JSON object", path);
    bool good = container ? edit_container(&document, config)
                          : edit_process(&document, document.root, config);
    char *changed = good && !document.error ? json_write(document.root, &written) : NULL;
    if (!changed) die("cannot change %s: out of memory", path);
    replace_file(path, changed, written, mode);
    free(changed);
    json_release(&document);
    free(text);
}

/* Beside the program and called as it is, ended with .conf: Podman starts its runtime with an
 * environment of its own. NULL if there is none. */
static const char *config_beside(void) {
    static char path[PATH_MAX];
    static const char end[] = ".conf";
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - sizeof end);
    if (size <= 0) return NULL;
    memcpy(path + size, end, sizeof end);
    return access(path, F_OK) == 0 ? path : NULL;
}

static void read_config(struct config *config) {
    const char *path = getenv(CONFIG_VARIABLE);
    if (!path || !*path) path = config_beside();
    if (!path) path = CONFIG_FILE;
    size_t length;
    mode_t mode;
    char *text = read_file(path, &length, &mode), why[256];
    if (strlen(text) != length) die("cannot read %s: not text", path);
    if (!config_parse(config, text, why, sizeof why)) die("cannot read %s: %s", path, why);
}

static bool command_is(const char *name) {
    return call.command && strcmp(call.command, name) == 0;
}

int main(int argc, char **argv) {
    if (argc < 1) return 1;
    call = call_read(argv);
    struct config config;
    read_config(&config);
    if (command_is("create") || command_is("run") || command_is("restore")) {
        const char *name = call.config ? call.config : "config.json";
        char *path; /* the runtime enters the bundle before it opens the file */
        if (asprintf(&path, "%s%s%s", *name == '/' ? "" : call.bundle, *name == '/' ? "" : "/",
                     name) < 0)
            die("out of memory");
        edit_file(path, true, &config);
        free(path);
    } else if (command_is("exec") && call.process) {
        edit_file(call.process, false, &config);
    }
    size_t extra = config.argument_count;
    char **arguments = calloc((size_t)argc + extra + 1, sizeof *arguments);
    if (!arguments) die("out of memory");
    arguments[0] = (char *)config.runtime;
    for (size_t i = 0; i < extra; i++) arguments[1 + i] = (char *)config.arguments[i];
    for (int i = 1; i < argc; i++) arguments[extra + (size_t)i] = argv[i];
    execv(config.runtime, arguments);
    int why = errno;
    free(arguments);
    die("cannot start %s: %s", config.runtime, strerror(why));
}
