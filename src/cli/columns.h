/* How many columns of a terminal text takes. The unit is the grapheme cluster: what a reader takes for one character,
 * such as a letter with its accents, a flag, or a family of joined emoji. */
#ifndef QN_CLI_COLUMNS_H
#define QN_CLI_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Code points of one text in order. Zero it before the first. */
typedef struct qn_columns {
    int32_t last;   /* the code point before; 0: none */
    int32_t state;  /* of the search for boundaries */
    unsigned width; /* columns of the cluster so far */
    bool is_unsure; /* terminals differ about its columns: `width` is the most that one of them takes */
} qn_columns;

/* qn_columns_add - adds a code point. Returns the columns by which the text grows; *begins: whether the code point
 * begins a cluster. Control characters take no column. */
unsigned qn_columns_add(qn_columns *columns, uint32_t code, bool *begins);

/* qn_columns_of - the columns of the first code point of a cluster by itself: 0, 1 or 2. */
unsigned qn_columns_of(uint32_t code);

typedef struct qn_cluster {
    size_t bytes;
    unsigned columns;
    bool is_unsure; /* as in qn_columns */
    uint32_t first; /* its first code point */
} qn_cluster;

/* qn_cluster_first - the first cluster of text [length], length >= 1. A byte that is not UTF-8 is a cluster without
 * columns. */
qn_cluster qn_cluster_first(const char *text, size_t length);

/* qn_cluster_before - the index at which the cluster that ends at text [at] begins, at >= 1. */
size_t qn_cluster_before(const char *text, size_t at);

/* qn_may_join - whether a code point is an emoji or a letter of a flag, to which others may be joined. */
bool qn_may_join(uint32_t code);

/* qn_is_wide_closing - whether a line should not begin with a wide character, as with a closing bracket or a comma;
 * qn_is_wide_opening: whether it should not end with it. */
bool qn_is_wide_closing(uint32_t code);
bool qn_is_wide_opening(uint32_t code);

#endif
