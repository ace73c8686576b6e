/* Models of quern serve, as the options of the command line have them. */
#ifndef QN_CLI_SERVE_MODEL_H
#define QN_CLI_SERVE_MODEL_H

#include "cli/args.h"
#include "serve/server.h"

/* qn_serve_name - the name of a file's model: without folders, and without what says that it is one, or one of several. */
void qn_serve_name(const char *path, char name[QN_REGISTRY_NAME_BYTES]);

/* qn_serve_weight_bytes - the memory of a model of so many bytes without its contexts: weights, vocabulary, work buffers. */
uint64_t qn_serve_weight_bytes(uint64_t file_bytes);

/* qn_serve_prepare - a model of a file with a scheduler: fills all of `out` but name and file. The caller frees out->scheduler,
 * then the model. QN_ERR_MEMORY: there is none for a request. */
qn_status qn_serve_prepare(const qn_args *args, const char *path, qn_model *model, qn_registered *out);

/* qn_serve_files_find - args->models, whose names of the hub become files, and args->models_dir. qn_serve_files_start - serve them:
 * each is loaded when it is asked for. Both return as qn_load_model, with an error line printed. The server must be freed before
 * qn_serve_files_free. */
typedef struct qn_serve_files qn_serve_files;
int qn_serve_files_find(qn_args *args, qn_serve_files **out);
int qn_serve_files_start(qn_serve_files *files, qn_server *server);
void qn_serve_files_free(qn_serve_files *files); /* NULL is allowed */

#endif
