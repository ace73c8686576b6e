/* Headers of the hub's answers: lines to values, and values to numbers. What a server sends is untrusted: a value is cut to its
 * size, and a number is decimal digits within bounds, or none. */
#ifndef QN_HUB_HEADER_H
#define QN_HUB_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_HUB_HEADER_SIZE = 256 };

/* Status and headers of the last answer in a row of redirects. */
typedef struct qn_hub_response {
    int status;
    int64_t length;                         /* of the body; -1 if unknown */
    long retry_after;                       /* seconds; 0 if not said */
    char commit[QN_HUB_HEADER_SIZE];        /* X-Repo-Commit, of any answer in the row */
    char etag[QN_HUB_HEADER_SIZE];          /* without quotes */
    char linked_etag[QN_HUB_HEADER_SIZE];   /* X-Linked-Etag, without quotes */
    char linked_size[QN_HUB_HEADER_SIZE];   /* X-Linked-Size */
    char range[QN_HUB_HEADER_SIZE];         /* Content-Range */
    char error_code[QN_HUB_HEADER_SIZE];    /* X-Error-Code */
    char error_message[QN_HUB_HEADER_SIZE]; /* X-Error-Message */
} qn_hub_response;

/* qn_hub_header - take a line "Name: value" of [length] into its member; other lines change nothing. The line ends with or
 * without a newline, and is not terminated. */
void qn_hub_header(qn_hub_response *response, const char *line, size_t length);

/* Of Content-Range: bytes `first` to `last` of `total`. */
typedef struct qn_hub_range {
    uint64_t first, last, total;
} qn_hub_range;

/* qn_hub_range_parse - "bytes FIRST-LAST/TOTAL", with first <= last < total <= QN_HUB_SIZE_MAX. qn_hub_size_parse - a size up to
 * QN_HUB_SIZE_MAX. False: the text is something else, and the result is not set. */
bool qn_hub_range_parse(const char *text, qn_hub_range *range);
bool qn_hub_size_parse(const char *text, uint64_t *size);

#endif
