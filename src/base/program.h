/* The running program: its arguments, standard streams and memory, and a part of it that runs on its own. */
#ifndef QN_BASE_PROGRAM_H
#define QN_BASE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* qn_program_begin - first call of main. Makes sure that descriptors 0 to 2 are open, so that no file opened later
 * becomes standard output; makes bytes of the standard streams mean the same on every system, and UTF-8 be what
 * terminals show. Returns the arguments in UTF-8, which live until the program ends. */
char **qn_program_begin(int *argc, char **argv);

/* qn_program_path - the path of the running program; false if it is unknown or does not fit. */
bool qn_program_path(char *path, size_t size);

/* qn_program_peak_memory - the largest amount of memory that it has occupied so far. */
uint64_t qn_program_peak_memory(void);

/* qn_is_terminal - whether a descriptor is a terminal, where someone reads or types. */
bool qn_is_terminal(int fd);

/* qn_is_utf8_terminal - whether terminals show the bytes of UTF-8 as characters. */
bool qn_is_utf8_terminal(void);

/* A function that runs in a process of its own, where the system can fork, else in a thread: its memory and threads are
 * not the program's. Used by one thread at a time. */
typedef struct qn_child {
    int to, from; /* descriptors of pipes */
    intptr_t id;  /* of the process or thread */
} qn_child;

/* qn_child_start - starts `serve`, which reads from one pipe and writes to the other, and ends when its input ends.
 * False with errno on failure. End it with qn_child_stop. */
bool qn_child_start(void (*serve)(int in, int out), qn_child *child);
void qn_child_stop(qn_child *child);

#endif
