#define _GNU_SOURCE
#include "csystem.h"
#include <sys/ioctl.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/futex.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int heartline_accept(int listener, struct sockaddr *address, socklen_t *length) {
    return accept4(listener, address, length, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

int heartline_futex_wait(const uint32_t *word, uint32_t expected, int64_t timeout_milliseconds) {
    struct timespec timeout = {timeout_milliseconds / 1000, (timeout_milliseconds % 1000) * 1000000};
    long result = syscall(SYS_futex, word, FUTEX_WAIT, expected,
                          timeout_milliseconds < 0 ? NULL : &timeout, NULL, 0);
    return result == 0 ? 0 : -errno;
}

void heartline_futex_wake(const uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void heartline_doorbell_ring(uint32_t *word) {
    atomic_fetch_add_explicit((_Atomic uint32_t *)word, 1, memory_order_release);
    heartline_futex_wake(word);
}

uint32_t heartline_doorbell_read(const uint32_t *word) {
    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_acquire);
}

int heartline_set_parent_death_signal(int signal) { return prctl(PR_SET_PDEATHSIG, signal); }

void heartline_set_thread_name(const char *name) { pthread_setname_np(pthread_self(), name); }

uint64_t heartline_process_cpu_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void heartline_set_malloc_thresholds(int mmap_bytes, int trim_bytes) {
    mallopt(M_MMAP_THRESHOLD, mmap_bytes);
    mallopt(M_TRIM_THRESHOLD, trim_bytes);
}

uint64_t heartline_allocated_bytes(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

int heartline_spawn(const char *path, char *const arguments[], char *const environment[],
                    int64_t user_id, int64_t group_id, int death_signal, int new_session,
                    int output_fd, const char *working_directory) {
    pid_t parent = getpid();
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) return -errno;
    pid_t child = fork();
    if (child < 0) {
        int failure = errno;
        close(report[0]);
        close(report[1]);
        return -failure;
    }
    if (child == 0) {
        // Only async-signal-safe calls from here to `execve`.
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
        int failure = 0;
        if (new_session && setsid() < 0) failure = errno;
        if (!failure && user_id >= 0) {
            if (setgroups(0, NULL) != 0 || setgid((gid_t)group_id) != 0 || setuid((uid_t)user_id) != 0)
                failure = errno;
        }
        if (!failure && death_signal != 0) {
            if (prctl(PR_SET_PDEATHSIG, death_signal) != 0) failure = errno;
            else if (getppid() != parent) _exit(127);
        }
        if (!failure && working_directory && chdir(working_directory) != 0) failure = errno;
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, 0);
        if (output_fd >= 0) {
            dup2(output_fd, 1);
            dup2(output_fd, 2);
        }
        // Whoever opened a descriptor without saying so: the child has no business with it.
        close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
        if (!failure) {
            execve(path, arguments, environment);
            failure = errno;
        }
        ssize_t ignored = write(report[1], &failure, sizeof failure);
        (void)ignored;
        _exit(127);
    }
    close(report[1]);
    int failure = 0;
    ssize_t count = read(report[0], &failure, sizeof failure);
    close(report[0]);
    if (count != (ssize_t)sizeof failure) return child;
    // Nobody will hear of this child: without being waited for it would stay a zombie.
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {}
    return -failure;
}

int heartline_terminal_rows(int descriptor) {
    struct winsize size;
    return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;
}
