/* The process that holds a pod's namespaces: waits, reaps, and ends on a signal.
 *
 * Without libc, so that it is static wherever a compiler is, and a few pages in memory for
 * each pod.
 */
#ifndef __x86_64__
#error "only x86-64 is supported"
#endif

enum { SYS_RT_SIGPROCMASK = 14, SYS_WAIT4 = 61, SYS_RT_SIGTIMEDWAIT = 128, SYS_EXIT = 60 };
enum { SIGNAL_INT = 2, SIGNAL_TERM = 15, SIGNAL_CHILD = 17, ANY_CHILD = -1, NO_HANG = 1 };

static long call4(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

__attribute__((noreturn, force_align_arg_pointer)) void _start(void);

void _start(void) {
    /* Blocked signals are kept for sigtimedwait, also for pid 1 of a namespace. */
    unsigned long set =
        1UL << (SIGNAL_INT - 1) | 1UL << (SIGNAL_TERM - 1) | 1UL << (SIGNAL_CHILD - 1);
    call4(SYS_RT_SIGPROCMASK, 0, (long)&set, 0, sizeof set);
    for (;;) {
        long signal = call4(SYS_RT_SIGTIMEDWAIT, (long)&set, 0, 0, sizeof set);
        if (signal == SIGNAL_CHILD) {
            while (call4(SYS_WAIT4, ANY_CHILD, 0, NO_HANG, 0) > 0) {
            }
        } else if (signal > 0) {
            for (;;) call4(SYS_EXIT, 0, 0, 0, 0);
        }
    }
}
