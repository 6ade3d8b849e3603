#define _GNU_SOURCE
#include "lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void lockfile_set(struct lockfile *file, const char *folder, const char *name, bool writable)
{
    snprintf(file->path, sizeof file->path, "%s/%s", folder, name);
    file->fd = -1;
    file->writable = writable;
}

bool lockfile_ready(struct lockfile *file)
{
    struct stat now;
    if (file->fd >= 0) {
        if (fstat(file->fd, &now) == 0 && now.st_dev == file->device &&
            now.st_ino == file->inode)
            return true;
        file->fd = -1; /* somebody else's number now: not ours to close */
    }
    int fd = open(file->path, (file->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &now) != 0)
        return false;
    file->device = now.st_dev;
    file->inode = now.st_ino;
    file->fd = fd;
    return true;
}

static bool set(struct lockfile *file, off_t byte, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(file->fd, F_SETLK, &lock);
    while (result != 0 && errno == EINTR);
    return result == 0;
}

bool lockfile_take(struct lockfile *file, off_t byte)
{
    return set(file, byte, F_WRLCK);
}

void lockfile_drop(struct lockfile *file, off_t byte)
{
    set(file, byte, F_UNLCK);
}

bool lockfile_wait(struct lockfile *file, off_t byte, int milliseconds)
{
    /* Polls instead of F_SETLKW: the kernel's deadlock search takes two threads'
     * waits for one process's and answers EDEADLK where there is none, and a holder
     * that was stopped (SIGSTOP) must not hold everybody for ever. */
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    long pause_ns = 2000;
    while (!set(file, byte, F_WRLCK)) {
        if (errno != EAGAIN && errno != EACCES)
            return false;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >
            milliseconds)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        if (pause_ns < 500000)
            pause_ns *= 2;
    }
    return true;
}

pid_t lockfile_owner(struct lockfile *file, off_t byte)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(file->fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
        return -1;
    return lock.l_pid > 0 ? lock.l_pid : 0;
}
