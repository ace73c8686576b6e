/* Reads the topology from sysfs, /proc and control groups of Linux. Elsewhere all processors are cores of one speed. */
#include "base/topology.h"

#include "base/append.h"
#include "base/cpu.h"
#include "base/posix/control_groups.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if QN_X86
#include <cpuid.h>
#endif

enum { PATH_BYTES = QN_GROUP_PATH_BYTES + 128, LINE_BYTES = 8192 };

typedef bool set[QN_MAX_PROCESSORS];

/* ---- Files ---- */

/* Reads the first line of a file, without its newline; false if there is none. */
static bool read_line(const char *root, const char *path, char line[LINE_BYTES])
{
    char full[PATH_BYTES];
    FILE *file = qn_print(full, sizeof full, "%s%s", root, path) ? fopen(full, "re") : NULL;
    const bool is_read = file && fgets(line, LINE_BYTES, file);
    if (file)
        fclose(file);
    if (is_read)
        line[strcspn(line, "\n")] = '\0';
    return is_read;
}

static bool read_number(const char **text, unsigned long *number)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    *number = strtoul(*text, &end, 10);
    *text = end;
    return errno == 0;
}

/* Reads a list such as "0-3,8"; false, with an empty set, if it is not one. Numbers beyond the limit are left out. */
static bool parse_list(const char *text, set out)
{
    memset(out, 0, sizeof(set));
    for (;; text++) {
        unsigned long first, last;
        if (!read_number(&text, &first))
            break;
        last = first;
        if (*text == '-') {
            text++;
            if (!read_number(&text, &last) || last < first)
                break;
        }
        for (unsigned long i = first; i <= last && i < QN_MAX_PROCESSORS; i++)
            out[i] = true;
        if (!*text)
            return true;
        if (*text != ',')
            break;
    }
    memset(out, 0, sizeof(set));
    return false;
}

static bool read_list(const char *root, const char *path, set out)
{
    char line[LINE_BYTES];
    return read_line(root, path, line) && parse_list(line, out);
}

/* ---- Processors ---- */

/* Keeps those that are also in `other`, unless none would be left. */
static void intersect(set out, const set other)
{
    bool is_some = false;
    for (size_t i = 0; i < QN_MAX_PROCESSORS; i++)
        is_some = is_some || (out[i] && other[i]);
    for (size_t i = 0; i < QN_MAX_PROCESSORS && is_some; i++)
        out[i] = out[i] && other[i];
}

struct cpusets {
    const char *root;
    bool *allowed;
};

static void take_cpuset(void *context, const char *folder, bool v2)
{
    const struct cpusets *of = context;
    char path[PATH_BYTES];
    set group;
    if (qn_print(path, sizeof path, "%s/%s", folder, v2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus") &&
        read_list(of->root, path, group))
        intersect(of->allowed, group);
}

/* The affinity mask of the calling thread; below a root, of /proc/self/status. */
static bool read_affinity(const char *root, set out)
{
    if (*root) {
        char path[PATH_BYTES], line[LINE_BYTES];
        static const char key[] = "Cpus_allowed_list:";
        bool is_found = false;
        FILE *file = qn_print(path, sizeof path, "%s/proc/self/status", root) ? fopen(path, "re") : NULL;
        while (file && !is_found && fgets(line, sizeof line, file)) {
            line[strcspn(line, "\n")] = '\0';
            if (!strncmp(line, key, sizeof key - 1))
                is_found = parse_list(line + sizeof key - 1 + strspn(line + sizeof key - 1, " \t"), out);
        }
        if (file)
            fclose(file);
        return is_found;
    }
#ifdef __linux__
    cpu_set_t mask;
    if (!sched_getaffinity(0, sizeof mask, &mask)) {
        for (int i = 0; i < QN_MAX_PROCESSORS; i++)
            out[i] = i < CPU_SETSIZE && CPU_ISSET(i, &mask);
        return true;
    }
#endif
    return false;
}

static void find_processors(const char *root, set allowed)
{
    set online;
    const bool has_online = read_list(root, "/sys/devices/system/cpu/online", online);
    const long configured = *root ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    if (!read_affinity(root, allowed)) {
        for (long i = 0; i < QN_MAX_PROCESSORS; i++)
            allowed[i] = has_online || i < configured;
        allowed[0] = allowed[0] || !has_online;
    }
    if (has_online)
        intersect(allowed, online);
    qn_visit_control_groups(root, "cpuset", take_cpuset, &(struct cpusets){ root, allowed });
}

/* ---- What is known of them ---- */

/* The lists of Intel's kinds of cores, and speeds: cpu_capacity, which Linux has for them since 6.12, is about that of
 * an efficient core at its highest clock, compared with a performance core. */
static const struct {
    const char *path;
    float speed;
} intel_kinds[] = {
    { "/sys/devices/cpu_core/cpus", 1.0f },
    { "/sys/devices/cpu_atom/cpus", 0.5f },
    { "/sys/devices/cpu_lowpower/cpus", 0.25f },
};

/* Kinds of cores by cpuid of each processor: leaf 7 says whether there are several kinds (EDX bit 15), leaf 0x1A which
 * one it is (EAX bits 24 to 31). For systems without the lists, as virtual machines are. */
typedef struct core_kind {
    uint32_t features[4], kind[4]; /* EAX EBX ECX EDX of both leaves */
} core_kind;

enum { FEATURES_LEAF = 7, KIND_LEAF = 0x1a, IS_HYBRID = 1 << 15, KIND_ATOM = 0x20, KIND_CORE = 0x40 };

static float speed_of_kind(const core_kind *kind)
{
    if (!(kind->features[3] & IS_HYBRID))
        return 0;
    switch (kind->kind[0] >> 24) {
    case KIND_CORE: return intel_kinds[0].speed;
    case KIND_ATOM: return intel_kinds[1].speed;
    default: return 0;
    }
}

/* By Linux's cpuid driver, whose files have a leaf's registers at its number. */
static bool read_kind(const char *root, int processor, core_kind *kind)
{
    char path[PATH_BYTES];
    const int file =
        qn_print(path, sizeof path, "%s/dev/cpu/%d/cpuid", root, processor) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return false;
    const ssize_t n_features = pread(file, kind->features, sizeof kind->features, FEATURES_LEAF),
                  n_kind = pread(file, kind->kind, sizeof kind->kind, KIND_LEAF);
    close(file);
    return n_features == (ssize_t)sizeof kind->features && n_kind == (ssize_t)sizeof kind->kind;
}

#if QN_X86 && defined(__linux__)
static void cpuid_here(core_kind *kind)
{
    uint32_t *f = kind->features, *k = kind->kind;
    *kind = (core_kind){ 0 };
    __get_cpuid_count(FEATURES_LEAF, 0, &f[0], &f[1], &f[2], &f[3]);
    __get_cpuid_count(KIND_LEAF, 0, &k[0], &k[1], &k[2], &k[3]);
}

/* A thread that goes from processor to processor, so that the caller stays where it may run. */
static void *visit_processors(void *topology)
{
    qn_topology *t = topology;
    for (size_t i = 0; i < t->n; i++) {
        cpu_set_t mask;
        core_kind kind;
        CPU_ZERO(&mask);
        if (t->at[i].id < CPU_SETSIZE)
            CPU_SET(t->at[i].id, &mask);
        if (sched_setaffinity(0, sizeof mask, &mask))
            return NULL;
        cpuid_here(&kind);
        t->at[i].speed = speed_of_kind(&kind);
    }
    return NULL;
}
#endif

/* Sets the speeds by cpuid; 0 where it does not tell. */
static void read_kinds(const char *root, qn_topology *t)
{
    bool is_known = true;
    for (size_t i = 0; i < t->n; i++)
        t->at[i].speed = 0;
#if QN_X86 && defined(__linux__)
    core_kind here;
    pthread_t thread;
    cpuid_here(&here);
    if (!*root && !speed_of_kind(&here))
        return;
#endif
    for (size_t i = 0; i < t->n && is_known; i++) {
        core_kind kind;
        is_known = read_kind(root, t->at[i].id, &kind);
        t->at[i].speed = is_known ? speed_of_kind(&kind) : 0;
    }
#if QN_X86 && defined(__linux__)
    if (!is_known && !*root && !pthread_create(&thread, NULL, visit_processors, t))
        pthread_join(thread, NULL);
#endif
}

static bool has_speeds(const qn_topology *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (!(t->at[i].speed > 0))
            return false;
    return true;
}

/* Returns whether any list has a processor. */
static bool read_kind_lists(const char *root, qn_topology *t)
{
    bool is_any = false;
    set kind;
    for (size_t k = 0; k < sizeof intel_kinds / sizeof *intel_kinds; k++) {
        const bool is_listed = read_list(root, intel_kinds[k].path, kind);
        for (size_t i = 0; i < t->n; i++)
            if (k == 0 || (is_listed && kind[t->at[i].id]))
                t->at[i].speed = intel_kinds[k].speed;
        is_any = is_any || is_listed;
    }
    return is_any;
}

static void read_speeds(const char *root, qn_topology *t)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    float most = 0;
    for (size_t i = 0; i < t->n; i++) {
        unsigned long capacity = 0;
        const char *at = line;
        t->at[i].speed = 0;
        if (qn_print(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", t->at[i].id) &&
            read_line(root, path, line) && read_number(&at, &capacity) && capacity <= 1 << 20)
            t->at[i].speed = (float)capacity;
    }
    if (!has_speeds(t) && !read_kind_lists(root, t))
        read_kinds(root, t);
    const bool is_known = has_speeds(t);
    for (size_t i = 0; i < t->n && !is_known; i++)
        t->at[i].speed = 1;
    for (size_t i = 0; i < t->n; i++)
        most = t->at[i].speed > most ? t->at[i].speed : most;
    for (size_t i = 0; i < t->n; i++)
        t->at[i].speed /= most;
}

static void read_cores(const char *root, qn_topology *t)
{
    char path[PATH_BYTES];
    for (size_t i = 0; i < t->n; i++) {
        set siblings;
        qn_processor *p = &t->at[i];
        p->core = p->id;
        if (!qn_print(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", p->id) ||
            !read_list(root, path, siblings) || !siblings[p->id])
            continue;
        for (int s = 0; s < p->core; s++)
            if (siblings[s])
                p->core = s;
    }
    t->n_cores = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool is_seen = false;
        for (size_t before = 0; before < i; before++)
            is_seen = is_seen || t->at[before].core == t->at[i].core;
        t->n_cores += !is_seen;
    }
}

static void read_nodes(const char *root, qn_topology *t)
{
    char path[PATH_BYTES];
    set nodes, processors;
    bool is_used[QN_MAX_NODES] = { false };
    const bool is_known = read_list(root, "/sys/devices/system/node/online", nodes);
    for (int node = 0; is_known && node < QN_MAX_NODES; node++) {
        if (!nodes[node] || !qn_print(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node) ||
            !read_list(root, path, processors))
            continue;
        for (size_t i = 0; i < t->n; i++)
            if (processors[t->at[i].id])
                t->at[i].node = node;
    }
    for (size_t i = 0; i < t->n; i++)
        is_used[t->at[i].node] = true;
    t->n_nodes = 0;
    for (int node = 0; node < QN_MAX_NODES; node++)
        t->n_nodes += is_used[node];
}

void qn_topology_read(const char *root, qn_topology *t)
{
    set allowed = { false };
    *t = (qn_topology){ 0 };
    find_processors(root, allowed);
    for (int id = 0; id < QN_MAX_PROCESSORS; id++)
        if (allowed[id])
            t->at[t->n++].id = id;
    t->n = t->n ? t->n : 1;
    read_speeds(root, t);
    read_cores(root, t);
    read_nodes(root, t);
}

/* ---- Numbers ---- */

int qn_cpu_threads(void)
{
#ifdef __linux__
    cpu_set_t mask;
    if (!sched_getaffinity(0, sizeof mask, &mask) && CPU_COUNT(&mask) > 0)
        return CPU_COUNT(&mask);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
