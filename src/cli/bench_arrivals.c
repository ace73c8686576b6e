/* Files of lengths, and intervals of a Poisson process. */
#include "cli/bench_arrivals.h"

#include "base/strings.h"
#include "cli/cli.h"

#include "base/memory.h"
#include "base/splitmix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 1 << 20, MAX_FILE = 1 << 26, MAX_LENGTH = 1 << 24 };

static bool parse(const char *path, char *text, qn_bench_length **lengths, size_t *n)
{
    size_t capacity = 0, line_number = 0;
    char *rest = text;
    for (char *line; (line = qn_strsep(&rest, "\n"));) {
        unsigned long prompt, answer;
        char more;
        line_number++;
        line[strcspn(line, "#\r")] = 0;
        if (!line[strspn(line, " \t")])
            continue;
        if (sscanf(line, "%lu %lu %c", &prompt, &answer, &more) != 2 || !prompt || !answer || prompt > MAX_LENGTH ||
            answer > MAX_LENGTH || *n >= MAX_LINES) {
            qn_cli_error("%s:%zu: expected the number of tokens of a prompt and of its answer, as in 512 128", path,
                         line_number);
            return false;
        }
        if (qn_realloc_array(lengths, &capacity, *n + 1, sizeof **lengths, "lengths of requests"))
            return qn_cli_fail() == QN_EXIT_DONE;
        (*lengths)[(*n)++] = (qn_bench_length){ prompt, answer };
    }
    if (!*n)
        qn_cli_error("%s: the file has no lengths", path);
    return *n > 0;
}

bool qn_bench_lengths(const char *path, qn_bench_length **lengths, size_t *n)
{
    char *text = NULL;
    size_t length;
    *lengths = NULL;
    *n = 0;
    const bool done = qn_read_all(path, MAX_FILE, &text, &length) && parse(path, text, lengths, n);
    free(text);
    if (!done) {
        free(*lengths);
        *lengths = NULL;
    }
    return done;
}

double qn_bench_interval(uint64_t *random, double rate)
{
    const double uniform = ((double)(qn_splitmix(random) >> 11) + 0.5) * 0x1p-53;
    return -log(uniform) / rate;
}
