#pragma once
// What Swift's Glibc module does not import: variadic functions, function-like macros and calls
// that need `_GNU_SOURCE`. No logic.
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <time.h>

/// `accept4` with `SOCK_NONBLOCK | SOCK_CLOEXEC`.
int heartline_accept(int listener, struct sockaddr *address, socklen_t *length);
/// `FUTEX_WAIT` on a word that may be shared between processes; 0 or `-errno`.
int heartline_futex_wait(const uint32_t *word, uint32_t expected, int64_t timeout_milliseconds);
/// `FUTEX_WAKE` of everyone that waits on the word.
void heartline_futex_wake(const uint32_t *word);
/// Adds one to the shared word, then wakes everyone that waits on it.
void heartline_doorbell_ring(uint32_t *word);
/// Reads the shared word with acquire ordering.
uint32_t heartline_doorbell_read(const uint32_t *word);
/// `prctl(PR_SET_PDEATHSIG, signal)`.
int heartline_set_parent_death_signal(int signal);
/// Names the calling thread (15 characters at most).
void heartline_set_thread_name(const char *name);
/// Rows of the terminal behind `descriptor` (`TIOCGWINSZ`); 0 if that is not known.
int heartline_terminal_rows(int descriptor);
/// CPU time that this process has used, in nanoseconds.
uint64_t heartline_process_cpu_nanoseconds(void);
/// `mallopt`: blocks of `mmap_bytes` and more are mapped and unmapped, `trim_bytes` free ones at the
/// heap's end are given back; both stay as they are set.
void heartline_set_malloc_thresholds(int mmap_bytes, int trim_bytes);
/// `mallinfo2`: bytes of the blocks that are allocated, mapped ones included.
uint64_t heartline_allocated_bytes(void);
/// Starts `path` with `arguments` and `environment` (both end with a null pointer).
///
/// In the child: `setsid` when `new_session`, group and user when `user_id` is not -1,
/// `PR_SET_PDEATHSIG` when `death_signal` is not 0 (set after the change of user, which clears it),
/// standard input from /dev/null, output and errors to `output_fd` when it is not -1.
/// Returns the process id, or `-errno`.
int heartline_spawn(const char *path, char *const arguments[], char *const environment[],
                    int64_t user_id, int64_t group_id, int death_signal, int new_session,
                    int output_fd, const char *working_directory);
