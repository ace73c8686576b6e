/* Saved sessions: a header, any bytes repeated as the data after it, and a choice of the fields to repair among
 * magic, version, model, sizes and checksums, so that every check is reached and passed. A restored session is
 * evaluated and rewound. */
#include "fuzz.h"

#include "cache/saved_layout.h"
#include "engine/internal.h"
#include "engine/state_file.h"

#include <stddef.h>
#include <xxhash.h>

enum { N_CTX = 200, N_FORMATS = 4, HEADER = sizeof(struct qn_state_header), CHECKSUM = sizeof(uint64_t) };

/* Bits of the input's first two bytes: parts that keep the input's value. */
enum {
    KEEP_MAGIC = 1,
    KEEP_VERSION = 2,
    KEEP_MODEL = 4,
    KEEP_KV = 8,
    KEEP_FILE_BYTES = 16,
    KEEP_LENGTHS = 32,
    KEEP_HEADER_CHECKSUM = 64,
    KEEP_CHECKSUM = 128,
    KEEP_SIZE = 256,
    KEEP_TOKENS = 512,
    FORMAT_AT = 10, /* and the next bit: the format, if that is repaired */
    KEEP_EXTENT = 4096,
    HAS_ROWS = 8192, /* the file has a list of rows */
    KEEP_ROWS = 16384,
    HAS_HEAD = 32768 /* the model has a draft head, and the file a part of it */
};

static const char *const formats[N_FORMATS] = { "f16", "aura4", "f32", "aura8" };

/* A model without a draft head, and one with it. */
static struct {
    qn_model *model;
    uint64_t fingerprint;
    qn_session *empty[N_FORMATS];
    float *logits;
} loaded[2];

static qn_model *model; /* of the file */
static float *logits;

static void load(const char *file, bool has_head)
{
    const qn_model_params params = { .size = sizeof(qn_model_params),
                                     .device = "cpu",
                                     .n_threads = 1,
                                     .draft = has_head ? QN_DRAFT_MTP : QN_DRAFT_OFF };
    char path[4096];
    if (qn_model_load(source_path(file, path), &params, &loaded[has_head].model) != QN_OK ||
        qn_model_fingerprint(loaded[has_head].model, &loaded[has_head].fingerprint) != QN_OK) {
        fprintf(stderr, "%s\n", qn_error_text());
        exit(1);
    }
    for (size_t i = 0; i < N_FORMATS; i++) {
        const qn_session_params session_params = { .size = sizeof(qn_session_params),
                                                   .n_ctx = N_CTX,
                                                   .kv = formats[i] };
        if (qn_session_create(loaded[has_head].model, &session_params, &loaded[has_head].empty[i]) != QN_OK)
            exit(1);
    }
    loaded[has_head].logits = malloc(qn_model_get_info(loaded[has_head].model)->n_vocab * sizeof(float));
    if (!loaded[has_head].logits)
        exit(1);
}

static void load_once(void)
{
    if (model)
        return;
    load("tests/golden/qwen35.q1_0.gguf", false);
    load("tests/golden/qwen35-mtp-grafted.f16.gguf", true);
}

static qn_extent extent_of(const struct qn_state_header *header)
{
    return (qn_extent){ header->length % (N_CTX + 1), header->state_position, header->shortest,
                        header->has_last_page & 1 };
}

static size_t right_size(const qn_session *session, qn_extent extent, uint32_t n_rows)
{
    if (!extent.length)
        extent.has_last_page = false;
    const qn_saved_layout layout = qn_saved_layout_of(&session->model->plan, session->format);
    return HEADER + extent.length * sizeof(qn_token) + n_rows * sizeof(qn_session_row) +
           (size_t)qn_saved_bytes(&layout, &extent) + CHECKSUM;
}

/* The bytes of what the draft head keeps. */
static size_t head_size(const qn_session *session, qn_extent extent)
{
    const qn_saved_layout layout = qn_saved_layout_of_head(&session->model->plan, session->format);
    if (!extent.length)
        return 0;
    return (size_t)qn_saved_kv_bytes(&layout, &extent) + qn_model_get_info(model)->n_embd * sizeof(float);
}

/* Makes the extent valid: the open chunk is full or empty if the length is a multiple of 64. */
static void make_extent(struct qn_state_header *header, bool codes)
{
    const uint32_t length = header->length % (N_CTX + 1);
    const bool is_complete = length && length % QN_PAGE == 0, is_empty = is_complete && header->state_position & 1;
    header->state_position = is_empty || !length ? length : (length - 1) / QN_PAGE * QN_PAGE;
    const uint32_t n_open = length - header->state_position;
    header->shortest = n_open ? header->state_position + 1 + header->shortest % n_open : length;
    header->has_last_page &= codes && is_complete && length > QN_PAGE;
}

/* Makes the list valid: of the first rows, every other one an embedding. */
static void make_rows(uint8_t *file, const struct qn_state_header *header)
{
    uint8_t *list = file + HEADER + header->length * sizeof(qn_token);
    const qn_token embedding = -1;
    for (uint32_t i = 0; i < header->n_rows; i++) {
        qn_session_row row;
        memcpy(&row, list + i * sizeof row, sizeof row);
        row.index = i;
        row.zero = 0;
        for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++)
            row.components[c] &= INT32_MAX;
        memcpy(list + i * sizeof row, &row, sizeof row);
        if (i % 2)
            memcpy(file + HEADER + i * sizeof embedding, &embedding, sizeof embedding);
    }
}

static uint8_t *make_file(const uint8_t *data, size_t size, size_t *file_size)
{
    unsigned keep = 0;
    struct qn_state_header header = { .length = 0 };
    if (size >= 2)
        keep = data[0] | (unsigned)data[1] << 8;
    if (size > 2)
        memcpy(&header, data + 2, size - 2 < HEADER ? size - 2 : HEADER);
    const size_t begin = 2 + HEADER, n = size > begin ? size - begin : 0;
    if (!(keep & KEEP_LENGTHS)) {
        header.capacity = N_CTX;
        header.length %= N_CTX + 1;
    }
    const size_t format = (keep >> FORMAT_AT) % N_FORMATS;
    const bool has_head = keep & HAS_HEAD;
    const qn_session *empty = loaded[has_head].empty[format];
    model = loaded[has_head].model;
    logits = loaded[has_head].logits;
    if (!(keep & KEEP_EXTENT))
        make_extent(&header, !strncmp(formats[format], "aura", 4));
    const qn_extent extent = extent_of(&header);
    const bool has_rows = keep & HAS_ROWS && extent.length;
    if (!(keep & KEEP_LENGTHS))
        header.n_rows = has_rows ? 1 + header.n_rows % extent.length : 0;
    const size_t without_head = right_size(empty, extent, header.n_rows % (N_CTX + 1));
    *file_size = keep & KEEP_SIZE
                     ? HEADER + CHECKSUM + n
                     : without_head + (has_head ? sizeof(struct qn_state_head) + head_size(empty, extent) : 0);
    uint8_t *file = calloc(1, *file_size);
    if (!file)
        exit(1);
    for (size_t i = HEADER; n && i < *file_size; i++)
        file[i] = data[begin + (i - HEADER) % n];
    const uint32_t n_vocab = qn_model_get_info(model)->n_vocab;
    if (!(keep & (KEEP_TOKENS | KEEP_SIZE))) {
        header.pending = (int32_t)((uint32_t)header.pending % (n_vocab + 1)) - 1;
        for (uint32_t i = 0; i < header.length % (N_CTX + 1); i++) {
            const qn_token token = (qn_token)(i % n_vocab);
            memcpy(file + HEADER + i * sizeof token, &token, sizeof token);
        }
        if (!(keep & (KEEP_ROWS | KEEP_LENGTHS)))
            make_rows(file, &header);
    }
    if (!(keep & KEEP_MAGIC))
        memcpy(header.magic, QN_STATE_MAGIC, sizeof header.magic);
    if (!(keep & KEEP_VERSION))
        header.version = has_head ? QN_STATE_VERSION_HEAD : has_rows ? QN_STATE_VERSION_ROWS : QN_STATE_VERSION;
    if (has_head && !(keep & (KEEP_SIZE | KEEP_MODEL)))
        memcpy(file + without_head - CHECKSUM,
               &(struct qn_state_head){ loaded[1].fingerprint, head_size(empty, extent) },
               sizeof(struct qn_state_head));
    if (!(keep & KEEP_MODEL))
        header.fingerprint = loaded[has_head].fingerprint;
    if (!(keep & KEEP_KV))
        snprintf(header.kv, sizeof header.kv, "%s", formats[format]);
    if (!(keep & KEEP_FILE_BYTES))
        header.file_bytes = *file_size;
    if (!(keep & KEEP_HEADER_CHECKSUM))
        header.checksum = XXH64(&header, offsetof(struct qn_state_header, checksum), 0);
    memcpy(file, &header, HEADER);
    const uint64_t checksum = XXH64(file, *file_size - CHECKSUM, 0);
    if (!(keep & KEEP_CHECKSUM))
        memcpy(file + *file_size - CHECKSUM, &checksum, CHECKSUM);
    return file;
}

static void use(qn_session *session)
{
    const qn_token token = 1;
    const uint32_t length = qn_session_length(session);
    if (length > qn_session_capacity(session))
        abort();
    for (uint32_t i = 0; i < length; i++)
        if ((uint32_t)qn_session_tokens(session)[i] >= qn_model_get_info(model)->n_vocab &&
            (qn_session_tokens(session)[i] != -1 || !session->n_own_rows))
            abort();
    if (qn_session_checkpoint(session) != QN_OK)
        abort();
    const qn_status status = qn_session_eval(session, &token, 1, QN_LOGITS_LAST, logits);
    if (status != (length == N_CTX ? QN_ERR_CONTEXT : QN_OK))
        abort();
    for (uint32_t to = length; to > 0; to /= 2)
        if (qn_session_truncate(session, qn_session_reach(session, to)) != QN_OK ||
            (qn_session_length(session) < N_CTX &&
             qn_session_eval(session, &token, 1, QN_LOGITS_LAST, logits) != QN_OK))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    load_once();
    size_t file_size;
    uint8_t *file = make_file(data, size, &file_size);
    char path[64];
    const int fd = memory_file(file, file_size, path);
    const qn_session_params params = { .size = sizeof(qn_session_params), .n_ctx = N_CTX, .n_batch = 8 };
    qn_session *session;
    const qn_status status = qn_session_restore(model, path, &params, &session);
    if (status == QN_OK)
        use(session);
    else if (size >= 2 && data[0] == 0 && data[1] % (1 << (FORMAT_AT - 8)) == 0 &&
             !(data[1] & (KEEP_EXTENT | KEEP_ROWS) >> 8))
        abort(); /* everything was repaired */
    qn_session_free(session);
    close(fd);
    free(file);
    return 0;
}
