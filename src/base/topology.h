/* The processors that this process may run on: which of them are hardware threads of one core, how fast the cores are
 * compared with each other, and on which NUMA nodes they are. Any thread may call these functions. */
#ifndef QN_BASE_TOPOLOGY_H
#define QN_BASE_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

/* Limits; processors and nodes beyond them are not used. */
enum { QN_MAX_PROCESSORS = 1024, QN_MAX_NODES = 64 };

typedef struct qn_processor {
    int id;      /* the system's number */
    int core;    /* the smallest number of the hardware threads of its core */
    int node;    /* the system's number of its NUMA node; 0 if unknown */
    float speed; /* of its core, compared with the fastest one of the process: more than 0, at most 1 */
} qn_processor;

typedef struct qn_topology {
    qn_processor at[QN_MAX_PROCESSORS]; /* ascending ids */
    size_t n;                           /* at least 1 */
    size_t n_cores, n_nodes;            /* of these processors */
} qn_topology;

/* qn_topology_read - finds the processors by the affinity mask of the calling thread, the control groups' cpusets (v1
 * and v2) and the processors that are online; with a `root` other than "", by the files below it, from which the mask
 * is then read, too. A file that is missing or not understood counts for nothing: without any there is one processor
 * for each bit of the mask, or one. */
void qn_topology_read(const char *root, qn_topology *topology);

/* qn_topology_speeds - the speeds of the cores, in descending order. */
void qn_topology_speeds(const qn_topology *topology, float speeds[QN_MAX_PROCESSORS]);

/* qn_useful_cores - returns how many of n cores, from the fastest on, end a phase of a step first. More cores compute
 * faster, but at its end all wait for the slowest, which has just begun a piece. */
size_t qn_useful_cores(const float *speeds, size_t n);

/* qn_own_part - returns how much of its equal part of the work a thread on the slowest of n cores does in the time in
 * which all of them together, sharing by speed, would do everything: 1 if they are alike. */
double qn_own_part(const float *speeds, size_t n);

/* qn_topology_print - writes a line such as "8 cores, 6 fast and 2 of 0.50 of their speed; 14 hardware threads; 1
 * NUMA node". */
void qn_topology_print(const qn_topology *topology, char *text, size_t bytes);

#endif
