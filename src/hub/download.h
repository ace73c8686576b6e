/* Downloads one file of the hub: continues an earlier attempt, verifies the content, and renames the complete file. */
#ifndef QN_HUB_DOWNLOAD_H
#define QN_HUB_DOWNLOAD_H

#include "hub/files.h"
#include "hub/folder.h"
#include "hub/http.h"

/* qn_hub_download - downloads `file`, whose size and hash are known, to `blob`.
 *
 *   repo   for error texts
 *   url    of the file
 *   blob   the final path in the cache. Until the content is complete and verified it is in BLOB.incomplete, which
 *          remains after an error for the next call; only content with a wrong hash is removed
 *   part, n_parts   for the progress
 *
 * The caller holds the lock of the blob (qn_hub_lock), so that no other thread or process writes it. Memory does not
 * grow with the file. */
qn_status qn_hub_download(qn_hub_http *http, const qn_hub_params *params, const char *repo, const qn_hub_file *file,
                          char *url, const qn_hub_cache *cache, const char *blob, uint32_t part, uint32_t n_parts);

#endif
