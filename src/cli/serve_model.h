/* Models of quern serve, with the values of the command line. */
#ifndef QN_CLI_SERVE_MODEL_H
#define QN_CLI_SERVE_MODEL_H

#include "cli/args.h"
#include "serve/server.h"

/* qn_serve_name - the name of a model file: without folders, without ".gguf" and without the number of a split file. */
void qn_serve_name(const char *path, char name[QN_REGISTRY_NAME_BYTES]);

/* qn_serve_weight_bytes - the memory of a model file without contexts: weights, vocabulary, work buffers. */
uint64_t qn_serve_weight_bytes(uint64_t file_bytes);

/* qn_serve_prepare - create the scheduler of a loaded model and fill all of `out` except name and file. `args`
 * must outlive *out, which has its texts. The caller frees out->scheduler, then the model. QN_ERR_MEMORY: there is no
 * memory for one request. */
qn_status qn_serve_prepare(const qn_args *args, const char *path, qn_model *model, qn_registered *out);

typedef struct qn_serve_files qn_serve_files;

/* qn_serve_files_find - find the files of args->models, where names of the hub become files, and of args->models_dir.
 * Returns as qn_load_model. */
int qn_serve_files_find(qn_args *args, qn_serve_files **out);

/* qn_serve_files_start - serve the models; each is loaded when a request names it. Returns as qn_load_model. */
int qn_serve_files_start(qn_serve_files *files, qn_server *server);

/* qn_serve_files_free - free it, after the server. NULL is allowed. */
void qn_serve_files_free(qn_serve_files *files);

#endif
