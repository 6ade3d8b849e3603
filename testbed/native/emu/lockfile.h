/* Record locks (fcntl) on the bytes of one file: what the kernel releases when their
 * owner dies, however it dies.
 *
 * A record lock also drops when the process closes *any* descriptor of the file. So
 * the descriptor here is never closed, its identity is checked before each use (a
 * program may have closed all descriptors, and the number may be another file's by
 * now), and owners take their byte again at each call that counts.
 */
#ifndef VGPU_EMU_LOCKFILE_H
#define VGPU_EMU_LOCKFILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct lockfile {
    char path[512];
    int fd; /* -1: not opened yet */
    bool writable;
    dev_t device;
    ino_t inode;
};

void lockfile_set(struct lockfile *file, const char *folder, const char *name, bool writable);

/* Opens the file where the descriptor is not (or no longer) ours. */
bool lockfile_ready(struct lockfile *file);

/* Takes a byte without waiting; also true where this process has it already. */
bool lockfile_take(struct lockfile *file, off_t byte);
void lockfile_drop(struct lockfile *file, off_t byte);

/* Takes a byte, waiting up to `milliseconds`. */
bool lockfile_wait(struct lockfile *file, off_t byte, int milliseconds);

/* Who else holds the byte: -1 nobody, 0 somebody without a pid in our PID namespace. */
pid_t lockfile_owner(struct lockfile *file, off_t byte);

#endif
