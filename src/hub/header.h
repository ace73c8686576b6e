/* Headers of the hub's answers: parses lines and numbers. A server is untrusted: values are cut to their size, and
 * numbers must be decimal digits within bounds. Pure functions. */
#ifndef QN_HUB_HEADER_H
#define QN_HUB_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_HUB_HEADER_SIZE = 256 };

/* Status and headers of the last answer in a chain of redirects. */
typedef struct qn_hub_response {
    int status;
    int64_t length;                         /* of the body; -1 if unknown */
    long retry_after;                       /* seconds; 0 if not given */
    char commit[QN_HUB_HEADER_SIZE];        /* X-Repo-Commit, from any answer of the chain */
    char etag[QN_HUB_HEADER_SIZE];          /* without quotes */
    char linked_etag[QN_HUB_HEADER_SIZE];   /* X-Linked-Etag, without quotes */
    char linked_size[QN_HUB_HEADER_SIZE];   /* X-Linked-Size */
    char range[QN_HUB_HEADER_SIZE];         /* Content-Range */
    char error_code[QN_HUB_HEADER_SIZE];    /* X-Error-Code */
    char error_message[QN_HUB_HEADER_SIZE]; /* X-Error-Message */
} qn_hub_response;

/* qn_hub_header - stores a line "Name: value" of [length] in its member; other lines are ignored. The line may end
 * with a newline and is not terminated. */
void qn_hub_header(qn_hub_response *response, const char *line, size_t length);

/* A Content-Range: bytes `first` to `last` of `total`. */
typedef struct qn_hub_range {
    uint64_t first, last, total;
} qn_hub_range;

/* qn_hub_range_parse - parses "bytes FIRST-LAST/TOTAL", with first <= last < total <= QN_HUB_SIZE_MAX. False, with
 * *range unset, for any other text. */
bool qn_hub_range_parse(const char *text, qn_hub_range *range);

/* qn_hub_size_parse - parses a size up to QN_HUB_SIZE_MAX. False, with *size unset, for any other text. */
bool qn_hub_size_parse(const char *text, uint64_t *size);

#endif
