/* System calls and a lock without the C library.
 *
 * We live in every program of a container, below other interposers (of malloc,
 * open, close, pthread): raw calls keep out of their way, never touch errno, and
 * ask for no symbol version that an older C library lacks. */
#ifndef VGPU_SHIM_SYS_H
#define VGPU_SHIM_SYS_H

#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Returns the result, or -errno. */
static inline long vgpu_sys(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static inline int vgpu_open(const char *path, int flags, int mode) {
    return (int)vgpu_sys(SYS_open, (long)path, flags, mode, 0, 0, 0);
}
static inline int vgpu_close(int fd) { return (int)vgpu_sys(SYS_close, fd, 0, 0, 0, 0, 0); }
static inline int vgpu_fstat(int fd, struct stat *st) {
    return (int)vgpu_sys(SYS_fstat, fd, (long)st, 0, 0, 0, 0);
}
static inline int vgpu_fcntl(int fd, int command, long argument) {
    return (int)vgpu_sys(SYS_fcntl, fd, command, argument, 0, 0, 0);
}
static inline long vgpu_readlink(const char *path, char *out, size_t size) {
    return vgpu_sys(SYS_readlink, (long)path, (long)out, (long)size, 0, 0, 0);
}
static inline int vgpu_getpid(void) { return (int)vgpu_sys(SYS_getpid, 0, 0, 0, 0, 0, 0); }
static inline void vgpu_yield(void) { vgpu_sys(SYS_sched_yield, 0, 0, 0, 0, 0, 0); }

#ifdef __SANITIZE_THREAD__ /* it must see that another thread's pages come to lie where ours were */
#define VGPU_MMAP(...) (long)mmap(__VA_ARGS__)
#define VGPU_MUNMAP(at, bytes) munmap(at, bytes)
#else
#define VGPU_MMAP(at, bytes, ...) vgpu_sys(SYS_mmap, (long)(at), (long)(bytes), __VA_ARGS__)
#define VGPU_MUNMAP(at, bytes) vgpu_sys(SYS_munmap, (long)(at), (long)(bytes), 0, 0, 0, 0)
#endif

/* NULL where the kernel has none. */
static inline void *vgpu_map(size_t bytes, int protection, int flags, int fd) {
    long at = VGPU_MMAP(NULL, bytes, protection, flags, fd, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}
static inline void vgpu_unmap(void *at, size_t bytes) { VGPU_MUNMAP(at, bytes); }

/* A fence between processes, where each writes its own word and then reads the others': a read
 * must not come before the write. The thread sanitizer knows no fences; what it can follow is an
 * exchange, which is one on this processor, if a slower one. */
static inline void vgpu_fence(void) {
#ifdef __SANITIZE_THREAD__
    static _Atomic int any;
    atomic_exchange(&any, 0);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Room for the time of a call, zeroed, for what is too large for a thread's stack: programs
 * have threads with 16 KiB of it (PTHREAD_STACK_MIN). NULL where there is no memory. */
static inline void *vgpu_scratch(size_t bytes) {
    enum { ANONYMOUS = 0x20 }; /* MAP_ANONYMOUS, which strict C11's headers do not show */
    return vgpu_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | ANONYMOUS, -1);
}

/* A lock between the threads of this process: 0 free, 1 taken, 2 taken and waited for. */
struct vgpu_lock {
    atomic_int state;
};

static inline int vgpu_try_lock(struct vgpu_lock *lock) {
    int free = 0;
    return atomic_compare_exchange_strong(&lock->state, &free, 1);
}

static inline void vgpu_lock(struct vgpu_lock *lock) {
    int seen = 0;
    if (atomic_compare_exchange_strong(&lock->state, &seen, 1)) return;
    if (seen != 2) seen = atomic_exchange(&lock->state, 2);
    while (seen != 0) {
        vgpu_sys(SYS_futex, (long)&lock->state, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
        seen = atomic_exchange(&lock->state, 2);
    }
}

static inline void vgpu_unlock(struct vgpu_lock *lock) {
    if (atomic_exchange(&lock->state, 0) == 2)
        vgpu_sys(SYS_futex, (long)&lock->state, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

#endif
