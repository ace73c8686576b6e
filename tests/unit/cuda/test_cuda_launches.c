/* The work of steps on a CUDA device, with a fake driver, compared with tests/golden/cuda_launches.txt: for each
 * model, way of execution and step, a hash over its launches (function, grid, block, shared memory, attributes,
 * arguments), copies, memsets and graph launches, in their order. A pointer is hashed as an allocation, numbered by
 * its first use in the step, and an offset, so that runs compare. A change that is not meant to change what a GPU
 * computes leaves the file as it is.
 *
 * With QN_LAUNCHES=FOLDER in the environment the test writes FOLDER/cuda_launches.txt, the new golden file, and
 * FOLDER/cuda_launches.log, in which every call is a line: two logs show by diff what a change did. */
#include "helper_cuda_model.h"
#include "helper_plan.h"
#include "helper_files.h"

#include "cuda/kernels/aura/aura.h"
#include "base/append.h"
#include "cuda/kernels/attention/page_rows.h"
#include "cuda/kernels/deltanet/deltanet.h"
#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/hadamard/hadamard.h"
#include "cuda/kernels/matmul/embed.h"
#include "cuda/kernels/matmul/hadamard_quantize.h"
#include "cuda/kernels/norm/norm.h"
#include "cuda/kernels/persistent/persistent.h"
#include "cuda/kernels/rope/rope.h"
#include "cuda/kernels/sample/sample.h"
#include "plan/limits.h"

#include <sys/mman.h>
#include <xxhash.h>

enum { MAX_REGIONS = 4096, N_SEQUENCES = 40, CONTEXT = 512, MAX_ROWS = 256 };

/* ---- What the device has ---- */

/* All memory of the device, and pinned memory, in a range that contains no address with a small number, or a small
 * negative one, in its low half: what is not a pointer is not taken for one. */
static const uint64_t ARENA = 0x200010000000, ARENA_BYTES = 0xe0000000;
enum { MAX_INPUT_BYTES = 1 << 20 };

struct region {
    uint64_t address;
    size_t bytes;
    bool is_host;
    int number; /* in the present step; 0: not used yet */
};

static struct {
    const qn_cuda_driver *fake;
    struct region regions[MAX_REGIONS];
    size_t n_regions;
    uint64_t next; /* address of the arena */
    int n_used, n_events;
    bool on;                       /* a step is recorded */
    size_t n_attention;            /* launches of decode attention that a test counts */
    qn_cu_launch_config attention; /* the last of them */
    XXH3_state_t *hash;
    FILE *log, *lines; /* log: may be NULL */
} trace;

/* Zeros. */
static uint64_t add_region(size_t bytes, bool is_host)
{
    const uint64_t address = trace.next;
    assert_in_range(trace.n_regions, 0, MAX_REGIONS - 1);
    trace.next += (bytes + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE;
    assert_in_range(trace.next, ARENA, ARENA + ARENA_BYTES);
    trace.regions[trace.n_regions++] = (struct region){ .address = address, .bytes = bytes, .is_host = is_host };
    return address;
}

static void drop_region(uint64_t address)
{
    for (size_t i = 0; i < trace.n_regions; i++)
        if (trace.regions[i].address == address) {
            trace.regions[i] = trace.regions[--trace.n_regions];
            return;
        }
}

/* The region with an address in it, or else with the address at its end. */
static struct region *region_of(uint64_t address)
{
    struct region *ends = NULL;
    for (size_t i = 0; i < trace.n_regions; i++) {
        struct region *r = &trace.regions[i];
        if (address >= r->address && address - r->address < r->bytes)
            return r;
        if (address == r->address + r->bytes)
            ends = r;
    }
    return ends;
}

/* ---- The record of a step ---- */

static void put(const char *format, ...)
{
    char text[256];
    qn_text_buffer to = QN_APPEND_TO(text);
    va_list args;
    va_start(args, format);
    qn_append_list(&to, format, args);
    va_end(args);
    assert_false(to.is_cut);
    XXH3_64bits_update(trace.hash, text, to.length);
    if (trace.log)
        fwrite(text, 1, to.length, trace.log);
}

/* A word whose high half is that of an address of the arena, though it is none: a 32-bit number and padding, in which
 * there is what an earlier part of the step had there. */
static bool has_padding(uint64_t word)
{
    return word >> 32 == ARENA >> 32;
}

static void put_word(uint64_t word)
{
    struct region *r = word ? region_of(word) : NULL;
    if (!r && has_padding(word)) {
        put(" %x", (unsigned)word);
        return;
    }
    if (!r) {
        put(" %llx", (unsigned long long)word);
        return;
    }
    if (!r->number)
        r->number = ++trace.n_used;
    put(" m%d/%zu+%llx", r->number, r->bytes, (unsigned long long)(word - r->address));
}

static void put_memory(const void *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)memory + at, bytes - at < sizeof word ? bytes - at : sizeof word);
        put_word(word);
    }
}

/* The inputs of earlier steps, which have other layouts, are not in the padding of this one's. */
static void begin(void)
{
    for (size_t i = 0; i < trace.n_regions; i++) {
        struct region *r = &trace.regions[i];
        r->number = 0;
        if (r->is_host && r->bytes > CONTEXT && r->bytes < MAX_INPUT_BYTES) /* but page tables */
            memset((void *)(uintptr_t)r->address, 0, r->bytes);
    }
    trace.n_used = trace.n_events = 0;
    XXH3_64bits_reset(trace.hash);
    trace.on = true;
}

static void end(const char *name)
{
    const XXH64_hash_t hash = XXH3_64bits_digest(trace.hash);
    trace.on = false;
    fprintf(trace.lines, "%s %d %016llx\n", name, trace.n_events, (unsigned long long)hash);
    if (trace.log)
        fprintf(trace.log, "== %s: %d\n", name, trace.n_events);
}

/* ---- The driver ---- */

static const struct function {
    const char *name;
    size_t args_bytes;
} functions[] = {
    { "qn_attention_decode", sizeof(qn_attention_decode_args) },
    { "qn_attention_prefill", sizeof(qn_attention_prefill_args) },
    { "qn_aura_quantize_page", sizeof(qn_aura_quantize_page_args) },
    { "qn_elementwise_gather", sizeof(qn_elementwise_gather_args) },
    { "qn_elementwise_swiglu", sizeof(qn_elementwise_swiglu_args) },
    { "qn_gdn_conv", sizeof(qn_gdn_conv_args) },
    { "qn_gdn_norm", sizeof(qn_gdn_norm_args) },
    { "qn_gdn_open_fold", sizeof(qn_gdn_open_args) },
    { "qn_gdn_open_few", sizeof(qn_gdn_open_args) },
    { "qn_gdn_open_row", sizeof(qn_gdn_open_args) },
    { "qn_gdn_open_step", sizeof(qn_gdn_open_args) },
    { "qn_gdn_", sizeof(qn_gdn_chunk_args) }, /* the others */
    { "qn_hadamard_cross", sizeof(qn_hadamard_cross_args) },
    { "qn_hadamard_quantize", sizeof(qn_hadamard_quantize_args) },
    { "qn_hadamard_tiles", sizeof(qn_hadamard_tiles_args) },
    { "qn_matmul_embed", sizeof(qn_matmul_embed_args) },
    { "qn_matmul_gemm_few", sizeof(qn_matmul_few_args) },
    { "qn_matmul_gemm", sizeof(qn_matmul_gemm_args) },
    { "qn_matmul_gemv_norm", sizeof(qn_matmul_gemv_norm_args) },
    { "qn_matmul_gemv", sizeof(qn_matmul_gemv_args) },
    { "qn_matmul_quantize_acts", sizeof(qn_matmul_quantize_acts_args) },
    { "qn_norm_keep", sizeof(qn_norm_keep_args) },
    { "qn_norm_pair", sizeof(qn_norm_pair_args) },
    { "qn_norm_rows", sizeof(qn_norm_rows_args) },
    { "qn_persistent_decode", sizeof(qn_persistent_args) },
    { "qn_rope_angles", sizeof(qn_rope_angles_args) },
    { "qn_rope_qk_norm_store", sizeof(qn_rope_qk_norm_store_args) },
    { "qn_sample_", sizeof(qn_sample_args) },
};

/* The first row whose name the function's begins with. quern compares the size with that of the launch. */
static size_t bytes_of(const char *name)
{
    for (size_t i = 0; i < COUNT(functions); i++)
        if (!strncmp(name, functions[i].name, strlen(functions[i].name)))
            return functions[i].args_bytes;
    fail_msg("%s: its arguments are not in the table of this test", name);
    return 0;
}

/* The same without padding at the end, in which there is anything. */
static size_t read_bytes(const char *name)
{
    return strcmp(name, "qn_rope_angles") != 0
               ? bytes_of(name)
               : offsetof(qn_rope_angles_args, n_rot) + sizeof((qn_rope_angles_args *)0)->n_rot;
}

static qn_cu_result param_info(qn_cu_function function, size_t index, size_t *offset, size_t *bytes)
{
    assert_int_equal(index, 0);
    *offset = 0;
    *bytes = bytes_of((const char *)(const void *)function);
    return 0;
}

static qn_cu_result launch(const qn_cu_launch_config *config, qn_cu_function function, void **parameters, void **extra)
{
    const char *name = (const char *)(const void *)function;
    if (!strcmp(name, "qn_attention_decode")) {
        trace.n_attention++;
        trace.attention = *config;
    }
    if (trace.on) {
        trace.n_events++;
        put("%s %u %u %u, %u %u %u, %u", name, config->grid[0], config->grid[1], config->grid[2], config->block[0],
            config->block[1], config->block[2], config->shared_bytes);
        for (unsigned i = 0; i < config->n_attributes; i++) {
            const qn_cu_launch_attribute *a = &config->attributes[i];
            if (a->id == QN_CU_LAUNCH_CLUSTER)
                put(", cluster %u %u %u", a->value.cluster[0], a->value.cluster[1], a->value.cluster[2]);
            else
                put(", attribute %d %d", (int)a->id, (int)a->value.on);
        }
        put(":");
        put_memory(parameters[0], read_bytes(name));
        const qn_matmul_embed_args *embed = parameters[0];
        if (!strcmp(name, "qn_matmul_embed") && embed->from) { /* it reads what is copied for other steps */
            put(" of");
            put_memory((const void *)(uintptr_t)embed->from, embed->n_words * sizeof(uint32_t));
        }
        put("\n");
    }
    return trace.fake->cuLaunchKernelEx(config, function, parameters, extra);
}

static void put_call(const char *name, uint64_t to, uint64_t from, size_t bytes)
{
    if (!trace.on)
        return;
    trace.n_events++;
    put("%s %zu:", name, bytes);
    put_word(to);
    put_word(from);
}

static qn_cu_result copy_in(uint64_t to, const void *from, size_t bytes, qn_cu_stream stream)
{
    put_call("h2d", to, (uint64_t)(uintptr_t)from, bytes);
    if (trace.on) {
        put(" of");
        put_memory(from, bytes);
        put("\n");
    }
    return trace.fake->cuMemcpyHtoDAsync(to, from, bytes, stream);
}

/* Memory of the caller is not numbered. */
static qn_cu_result copy_out(void *to, uint64_t from, size_t bytes, qn_cu_stream stream)
{
    const uint64_t address = (uint64_t)(uintptr_t)to;
    put_call("d2h", region_of(address) ? address : 0, from, bytes);
    if (trace.on)
        put("\n");
    return trace.fake->cuMemcpyDtoHAsync(to, from, bytes, stream);
}

static qn_cu_result copy(uint64_t to, uint64_t from, size_t bytes, qn_cu_stream stream)
{
    put_call("d2d", to, from, bytes);
    if (trace.on)
        put("\n");
    return trace.fake->cuMemcpyDtoDAsync(to, from, bytes, stream);
}

static qn_cu_result fill(uint64_t to, unsigned char value, size_t bytes, qn_cu_stream stream)
{
    put_call("memset", to, value, bytes);
    if (trace.on)
        put("\n");
    return trace.fake->cuMemsetD8Async(to, value, bytes, stream);
}

static qn_cu_result graph_launch(qn_cu_graph_exec exec, qn_cu_stream stream)
{
    if (trace.on) {
        trace.n_events++;
        put("graph\n");
    }
    return trace.fake->cuGraphLaunch(exec, stream);
}

static qn_cu_result alloc(uint64_t *address, size_t bytes)
{
    *address = add_region(bytes, false);
    fake_count(&fake.allocations, 1);
    return 0;
}

static qn_cu_result release(uint64_t address)
{
    drop_region(address);
    fake_count(&fake.allocations, -1);
    return 0;
}

static qn_cu_result host_alloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory = (void *)(uintptr_t)add_region(bytes, true);
    fake_count(&fake.host_allocations, 1);
    return 0;
}

static qn_cu_result host_free(void *memory)
{
    drop_region((uint64_t)(uintptr_t)memory);
    fake_count(&fake.host_allocations, -1);
    return 0;
}

static qn_cu_result reserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted,
                            unsigned long long flags)
{
    assert_true(!alignment && !wanted && !flags);
    *address = add_region(bytes, false);
    fake_count(&fake.reservations, 1);
    return 0;
}

static qn_cu_result unreserve(uint64_t address, size_t bytes)
{
    (void)bytes;
    drop_region(address);
    fake_count(&fake.reservations, -1);
    return 0;
}

/* An empty arena. */
static void map_arena(void)
{
    void *const at = (void *)(uintptr_t)ARENA;
    (void)munmap(at, ARENA_BYTES);
    assert_ptr_equal(mmap(at, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
                     at);
    trace.next = ARENA;
}

static const qn_cuda_driver *tracing_driver(int major)
{
    static qn_cuda_driver driver;
    trace.fake = fake_driver();
    trace.n_regions = 0;
    map_arena();
    fake.major = major;
    fake.args_bytes = NULL;
    driver = *trace.fake;
    driver.cuLaunchKernelEx = launch;
    driver.cuFuncGetParamInfo = param_info;
    driver.cuMemcpyHtoDAsync = copy_in;
    driver.cuMemcpyDtoHAsync = copy_out;
    driver.cuMemcpyDtoDAsync = copy;
    driver.cuMemsetD8Async = fill;
    driver.cuGraphLaunch = graph_launch;
    driver.cuMemAlloc = alloc;
    driver.cuMemFree = release;
    driver.cuMemHostAlloc = host_alloc;
    driver.cuMemFreeHost = host_free;
    driver.cuMemAddressReserve = reserve;
    driver.cuMemAddressFree = unreserve;
    return &driver;
}

/* ---- A device with sequences ---- */

/* A way of execution. */
struct way {
    const char *name, *variable; /* of QN_CUDA */
    int major;                   /* compute capability */
    bool deterministic;
    unsigned bits; /* of AURA codes; 0: fp16 */
};

struct model {
    const char *name;          /* of a golden model if there is no shape */
    const struct shape *shape; /* or NULL */
    bool has_head;             /* with its block for multi-token prediction */
};

struct fixture {
    struct cuda_fixture cuda;
    const char *model;
    const struct way *way;
    qn_memory *memories[N_SEQUENCES];
    float *logits;
    uint32_t *allowed;
    char name[160];
};

static struct fixture fixture; /* of the current model and way */

/* context: of each sequence. */
static void set_up(const struct model *model, const struct way *way, size_t context)
{
    fixture = (struct fixture){ .model = model->name, .way = way };
    if (model->shape) {
        build_plan(&fixture.cuda.plan, model->shape);
        fixture.cuda.hparams.n_layers = (uint32_t)model->shape->n_layers;
        fixture.cuda.hparams.head_dim = (uint32_t)model->shape->head_dim;
    } else {
        read_golden(&fixture.cuda, model->name);
    }
    if (model->has_head) {
        qn_model_head head;
        qn_plan_free(&fixture.cuda.plan);
        assert_ok(qn_model_build_with_head(fixture.cuda.file, &fixture.cuda.hparams, &fixture.cuda.plan, &head));
        assert_true(head.is_there);
    }
    const qn_cuda_tools tools = { .cache_folder = "", .nvcc = "", .nvrtc = QN_FAKE_NVRTC };
    unsigned cpu;
    setenv("QN_CUDA", way->variable, 1);
    assert_ok(qn_cpu_features(&cpu));
    assert_ok(qn_team_create(1, &fixture.cuda.team));
    /* Small models have heads that AURA has no codec for: their cache is fp16. */
    const bool has_codes = way->bits && qn_aura_has_dim(fixture.cuda.hparams.head_dim);
    snprintf(fixture.name, sizeof fixture.name, has_codes ? "aura%u" : "f16", way->bits);
    assert_ok(qn_kv_format_named(fixture.name, &fixture.cuda.format));
    const qn_cuda_executor_params params = { .base = { .plan = &fixture.cuda.plan,
                                                       .team = fixture.cuda.team,
                                                       .cpu = cpu,
                                                       .memory = (uint64_t)1 << 29,
                                                       .deterministic = way->deterministic },
                                             .driver = tracing_driver(way->major),
                                             .tools = &tools };
    assert_ok(qn_cuda_executor_create(&params, &fixture.cuda.device));
    const qn_memory_params memory = memory_params(&fixture.cuda, context, MAX_ROWS);
    for (size_t i = 0; i < N_SEQUENCES; i++)
        assert_ok(fixture.cuda.device->vtable->memory_new(fixture.cuda.device, &memory, &fixture.memories[i]));
    assert_ok(fixture.cuda.device->vtable->reserve(fixture.cuda.device, MAX_ROWS, context));
    fixture.logits = calloc(MAX_ROWS * fixture.cuda.plan.n_vocab, sizeof *fixture.logits);
    fixture.allowed = calloc(qn_sample_mask_words(fixture.cuda.plan.n_vocab), sizeof *fixture.allowed);
    assert_true(fixture.logits && fixture.allowed);
    fixture.allowed[0] = 0x5555;
}

static void tear_down(void)
{
    free(fixture.logits);
    free(fixture.allowed);
    for (size_t i = 0; i < N_SEQUENCES; i++)
        fixture.memories[i]->vtable->free(fixture.memories[i]);
    free_device(&fixture.cuda);
}

/* ---- Steps ---- */

struct rows {
    qn_row rows[MAX_ROWS];
    uint32_t logit_rows[MAX_ROWS];
    qn_sample_request requests[MAX_ROWS];
    qn_logprobs logprobs[MAX_ROWS];
    size_t n, n_logits;
};

/* Adds n rows of a sequence, after those that it has, and the logits of the last `logits` ones. */
static void add_piece(struct rows *r, size_t sequence, size_t n, size_t logits)
{
    qn_memory *memory = fixture.memories[sequence];
    const size_t n_tokens = fixture.cuda.plan.n_vocab < 100 ? fixture.cuda.plan.n_vocab : 100;
    assert_ok(memory->vtable->prepare(memory, n));
    for (size_t i = 0; i < n; i++) {
        const uint32_t position = memory->sequence->length + (uint32_t)i;
        if (i + logits >= n)
            r->logit_rows[r->n_logits++] = (uint32_t)r->n;
        r->rows[r->n++] =
            (qn_row){ .token = (int32_t)((sequence + position) % n_tokens), .position = position, .memory = memory };
    }
}

static void append(const struct rows *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (i + 1 == r->n || r->rows[i + 1].memory != r->rows[i].memory)
            qn_memory_on_append(r->rows[i].memory, r->rows[i].position + 1);
}

static struct rows decode_of(size_t n)
{
    struct rows r = { .n = 0 };
    for (size_t i = 0; i < n; i++)
        add_piece(&r, i, 1, 1);
    return r;
}

enum requests { NONE, GREEDY, DRAWN, FILTERED, CONSTRAINED, CHANGED, LISTED, ON_HOST, MIXED };

static void prepare_request(void *user, qn_sample_request *request)
{
    request->allowed = user;
}

static void fill_request(struct rows *r, size_t i, enum requests kind)
{
    static const qn_logit_bias bias[] = { { 3, 1.5f }, { 7, -2.5f } };
    static const qn_token recent[] = { 1, 2, 3, 2 };
    qn_sample_request *q = &r->requests[i];
    *q = (qn_sample_request){ .sampling = { .top_p = 1, .repeat_penalty = 1 }, .random = 12345 + i };
    if (kind != GREEDY)
        q->sampling.temperature = 0.75f;
    switch (kind) {
    case FILTERED:
        q->sampling.top_k = 20;
        q->sampling.top_p = 0.9f;
        q->sampling.min_p = 0.05f;
        break;
    case CONSTRAINED: q->allowed = fixture.allowed; break;
    case CHANGED:
        q->bias = bias;
        q->n_bias = 2;
        q->recent = q->generated = recent;
        q->n_recent = q->n_generated = 4;
        q->sampling.repeat_penalty = 1.25f;
        q->sampling.frequency_penalty = 0.5f;
        break;
    case LISTED:
        r->logprobs[i] = (qn_logprobs){ .n = 5 };
        q->logprobs = &r->logprobs[i];
        break;
    case ON_HOST: q->sampling.mirostat = 2; break;
    default: break;
    }
}

static void fill_requests(struct rows *r, enum requests kind)
{
    for (size_t i = 0; i < r->n_logits; i++)
        fill_request(r, i, kind == MIXED ? (enum requests)(GREEDY + i % 7) : kind);
}

static qn_step step_of(struct rows *r, bool has_logits, enum requests kind)
{
    if (kind != NONE)
        fill_requests(r, kind);
    return (qn_step){ .rows = r->rows,
                      .n_rows = r->n,
                      .logit_rows = r->logit_rows,
                      .n_logit_rows = r->n_logits,
                      .logits = has_logits ? fixture.logits : NULL,
                      .requests = kind != NONE ? r->requests : NULL };
}

static void begin_step(const char *name)
{
    snprintf(fixture.name, sizeof fixture.name, "%s.%s.%s", fixture.model, fixture.way->name, name);
    label("%s", fixture.name);
    begin();
}

static void run(const char *name, struct rows *r, bool has_logits, enum requests kind)
{
    const qn_step step = step_of(r, has_logits, kind);
    begin_step(name);
    assert_ok(fixture.cuda.device->vtable->run(fixture.cuda.device, &step));
    end(fixture.name);
    append(r);
}

/* Two decode steps, of which the second takes its tokens from the first, which is in flight where the device allows
 * it. */
static void run_ahead(size_t n)
{
    const qn_device_vtable *d = fixture.cuda.device->vtable;
    const bool ahead = fixture.cuda.device->ahead >= n;
    struct rows first = decode_of(n);
    const qn_step step = step_of(&first, false, DRAWN);
    begin_step("ahead");
    assert_ok(d->launch(fixture.cuda.device, &step));
    append(&first);
    if (!ahead)
        assert_ok(d->finish(fixture.cuda.device));
    struct rows second = decode_of(n);
    for (size_t i = 0; ahead && i < n; i++)
        second.rows[i].source = (uint32_t)(n - i);
    const qn_step next = step_of(&second, false, GREEDY);
    assert_ok(d->launch(fixture.cuda.device, &next));
    for (size_t i = 0; i < (size_t)1 + ahead; i++)
        assert_ok(d->finish(fixture.cuda.device));
    end(fixture.name);
    append(&second);
}

/* Requests that are prepared while the step is computed. */
static void run_later(size_t n)
{
    char name[32];
    struct rows r = decode_of(n);
    snprintf(name, sizeof name, "later %zu", n);
    qn_step step = step_of(&r, false, DRAWN);
    for (size_t i = 0; i < n; i++) {
        r.requests[i].prepare = prepare_request;
        r.requests[i].user = fixture.allowed;
    }
    begin_step(name);
    assert_ok(fixture.cuda.device->vtable->launch(fixture.cuda.device, &step));
    assert_ok(fixture.cuda.device->vtable->sample(fixture.cuda.device));
    assert_ok(fixture.cuda.device->vtable->finish(fixture.cuda.device));
    end(fixture.name);
    append(&r);
}

static void run_decode(void)
{
    static const size_t numbers[] = { 1, 2, 5, 8, 33 };
    for (size_t i = 0; i < COUNT(numbers); i++) {
        char name[48];
        for (int again = 0; again < 2; again++) { /* the graph is captured, and launched again */
            struct rows r = decode_of(numbers[i]);
            snprintf(name, sizeof name, "decode %zu.%d", numbers[i], again);
            run(name, &r, true, NONE);
        }
        for (enum requests kind = GREEDY; kind <= MIXED; kind++) {
            struct rows r = decode_of(numbers[i]);
            snprintf(name, sizeof name, "sampled %zu.%d", numbers[i], (int)kind);
            run(name, &r, kind == DRAWN, kind);
        }
    }
}

static void run_prefill(void)
{
    struct rows r = { .n = 0 };
    add_piece(&r, 34, 33, 1);
    run("prefill 33", &r, true, NONE);
    r.n = r.n_logits = 0;
    add_piece(&r, 35, 200, 1);
    run("prefill 200", &r, false, GREEDY);
    r.n = r.n_logits = 0; /* pieces with and without complete chunks and pages, and single rows */
    add_piece(&r, 34, 100, 1);
    for (size_t i = 0; i < 5; i++)
        add_piece(&r, i, 1, 1);
    add_piece(&r, 36, 40, 2);
    add_piece(&r, 35, 70, 0);
    run("mixed", &r, true, MIXED);
    r.n = r.n_logits = 0; /* drafted rows */
    for (size_t i = 0; i < 3; i++)
        add_piece(&r, i, 4, 4);
    run("drafted", &r, true, MIXED);
    r.n = r.n_logits = 0;
    add_piece(&r, 37, 5, 0);
    run("without logits", &r, false, NONE);
}

/* Up to a position where an open chunk is full, and a page. */
static void run_full(void)
{
    struct rows r = { .n = 0 };
    for (size_t i = 0; i < 3; i++)
        add_piece(&r, i, 63 - fixture.memories[i]->sequence->length % 64, 0);
    run("to 63", &r, false, NONE);
    for (int i = 0; i < 3; i++) {
        char name[32];
        r = decode_of(3);
        snprintf(name, sizeof name, "full %d", i);
        run(name, &r, true, NONE);
    }
    r = decode_of(1);
    run("one", &r, true, GREEDY);
}

/* Draft steps of chains of two tokens; the second takes its tokens from the first, which is in flight where the device
 * allows it. */
static void run_drafts(size_t n)
{
    const qn_device_vtable *d = fixture.cuda.device->vtable;
    const bool ahead = fixture.cuda.device->ahead >= n;
    char name[32];
    struct rows first = { .n = 0 }, second = { .n = 0 };
    for (size_t i = 0; i < n; i++) {
        qn_memory *memory = fixture.memories[i];
        add_piece(&first, i, 2, 0);
        first.rows[i] = first.rows[2 * i];
        second.rows[i] = first.rows[2 * i + 1];
        second.rows[i].source = ahead ? (uint32_t)(i + 1) : 0;
        first.logit_rows[i] = second.logit_rows[i] = (uint32_t)i;
        assert_ptr_equal(second.rows[i].memory, memory);
    }
    first.n = first.n_logits = second.n = second.n_logits = n;
    qn_step steps[] = { step_of(&first, false, GREEDY), step_of(&second, false, GREEDY) };
    steps[0].is_draft = steps[1].is_draft = true;
    for (int again = 0; again < 2; again++) {
        snprintf(name, sizeof name, "draft %zu.%d", n, again);
        begin_step(name);
        assert_ok(d->launch(fixture.cuda.device, &steps[0]));
        if (!ahead)
            assert_ok(d->finish(fixture.cuda.device));
        assert_ok(d->launch(fixture.cuda.device, &steps[1]));
        for (size_t i = 0; i < (size_t)1 + ahead; i++)
            assert_ok(d->finish(fixture.cuda.device));
        end(fixture.name);
    }
    for (size_t i = 0; i < n; i++) /* takes back what was reserved */
        qn_memory_on_append(fixture.memories[i], fixture.memories[i]->sequence->length);
}

/* Drafts of one sequence, of which the fourth ends its page, and the fifth begins the next one, after a fold: a graph,
 * which is captured and launched again. */
static void run_verified(void)
{
    char name[32];
    for (int i = 0; i < 5; i++) {
        struct rows r = { .n = 0 };
        const size_t length = fixture.memories[38]->sequence->length;
        add_piece(&r, 38, i == 2 ? 64 - length % 64 - 4 : 4, i == 2 ? 0 : 4);
        snprintf(name, sizeof name, "verified %d", i);
        run(name, &r, true, i == 2 ? NONE : MIXED);
    }
}

/* Rows of a draft with the bits of steps of one row. */
static void run_single(void)
{
    struct rows r = { .n = 0 };
    add_piece(&r, 38, 1, 1);
    add_piece(&r, 39, 4, 4);
    for (size_t i = 1; i < r.n; i++)
        r.rows[i].is_single = true;
    run("single", &r, true, MIXED);
}

static void run_model(const struct model *model, const struct way *way)
{
    set_up(model, way, CONTEXT);
    run_decode();
    run_prefill();
    run_full();
    run_later(1);
    run_later(5);
    run_ahead(5);
    if (way->deterministic)
        run_single();
    else
        run_verified();
    for (size_t n = 1; model->has_head && n < 4; n += 2)
        run_drafts(n);
    tear_down();
}

/* ---- The test ---- */

static const struct way ways[] = {
    { "f16", "", 9, false, 0 },          { "aura4", "", 9, false, 4 }, { "launches", "launches", 9, false, 0 },
    { "deterministic", "", 9, true, 4 }, { "sm80", "", 8, false, 0 },
};
/* Golden models of each architecture, and shapes of large ones. */
static const struct shape hybrid = { .n_layers = 4,
                                     .interval = 2,
                                     .embd = 1024,
                                     .ff = 2304,
                                     .heads = 6,
                                     .kv = 2,
                                     .head_dim = 256,
                                     .gated = true,
                                     .k_heads = 4,
                                     .v_heads = 12,
                                     .head = 128,
                                     .type = QN_TYPE_Q1_0,
                                     .gates = QN_TYPE_Q1_0 };
static const struct shape rotated = { .n_layers = 4,
                                      .interval = 2,
                                      .embd = 1024,
                                      .ff = 2304,
                                      .heads = 6,
                                      .kv = 2,
                                      .head_dim = 256,
                                      .gated = true,
                                      .k_heads = 4,
                                      .v_heads = 12,
                                      .head = 128,
                                      .type = QN_TYPE_PTQ1_0,
                                      .gates = QN_TYPE_F16,
                                      .rotation = 256 };
static const struct shape dense = { .n_layers = 3,
                                    .interval = 1,
                                    .embd = 1024,
                                    .ff = 3072,
                                    .heads = 8,
                                    .kv = 2,
                                    .head_dim = 128,
                                    .type = QN_TYPE_PQ2_0,
                                    .gates = QN_TYPE_PQ2_0,
                                    .odd = QN_TYPE_Q8_0 };
static const struct model models[] = {
    { "llama.q1_0", NULL, false },          { "qwen2.q1_0", NULL, false },
    { "qwen3.q1_0", NULL, false },          { "qwen3-yarn.f16", NULL, false },
    { "qwen35.ptq1_0", NULL, false },       { "qwen35.f16", NULL, false },
    { "qwen35-rotated.q1_0", NULL, false }, { "hybrid", &hybrid, false },
    { "rotated hybrid", &rotated, false },  { "dense", &dense, false },
    { "scheduler-mtp", NULL, true },        { "qwen35-mtp-grafted.f16", NULL, true }
};

static void expect_lines(const char *found, const char *expected)
{
    size_t line = 0;
    int differ = 0;
    while (*found || *expected) {
        const size_t n = strcspn(found, "\n"), n_expected = strcspn(expected, "\n");
        line++;
        if (n != n_expected || memcmp(found, expected, n) != 0) {
            differ++;
            if (differ <= 10)
                print_error("line %zu: %.*s, expected %.*s\n", line, (int)n, found, (int)n_expected, expected);
        }
        found += n + (found[n] != 0);
        expected += n_expected + (expected[n_expected] != 0);
    }
    assert_int_equal(differ, 0);
}

TEST(steps_launch_what_they_did)
{
    const char *folder = getenv("QN_LAUNCHES");
    char path[512], *lines;
    size_t bytes;
    trace.hash = XXH3_createState();
    trace.lines = open_memstream(&lines, &bytes);
    assert_true(trace.hash && trace.lines);
    if (folder) {
        snprintf(path, sizeof path, "%s/cuda_launches.log", folder);
        trace.log = fopen(path, "w");
        assert_non_null(trace.log);
    }
    for (size_t m = 0; m < COUNT(models); m++)
        for (size_t w = 0; w < COUNT(ways); w++)
            run_model(&models[m], &ways[w]);
    unsetenv("QN_CUDA");
    fclose(trace.lines);
    XXH3_freeState(trace.hash);
    if (folder) {
        fclose(trace.log);
        snprintf(path, sizeof path, "%s/cuda_launches.txt", folder);
        write_file(path, lines, bytes);
    }
    char *golden = read_file(QN_SOURCE_DIR "/tests/golden/cuda_launches.txt", NULL);
    expect_lines(lines, golden);
    free(golden);
    free(lines);
}

/* ---- Attention of drafts at late positions ---- */

static void run_rows(size_t n, size_t logits)
{
    struct rows r = { .n = 0 };
    add_piece(&r, 0, n, logits);
    const qn_step step = step_of(&r, true, NONE);
    assert_ok(fixture.cuda.device->vtable->run(fixture.cuda.device, &step));
    append(&r);
}

/* Tiles of query heads of the attention of a draft of `n` rows, which begins at `position`: by the threads and the
 * shared memory of its launches, of which there are none if an earlier draft's graph is taken (0). */
static int tiles_of_draft(uint32_t position, size_t n)
{
    const qn_attention_gpu gpu = { .head_dim = 128,
                                   .n_heads = 8,
                                   .n_kv_heads = 2,
                                   .key_bits = 4,
                                   .value_bits = 4,
                                   .pages = true,
                                   .n_sms = 132,
                                   .max_shared_bytes = 227 << 10 };
    const qn_attention_splits splits = qn_attention_gpu_splits(&gpu, 4096);
    const qn_cu_launch_config *found = &trace.attention;
    qn_launch rows, together;
    assert_ok(qn_attention_gpu_decode(&gpu, 4, &splits, &rows));
    assert_ok(qn_attention_gpu_decode_page(&gpu, 4, &splits, &together));
    assert_int_not_equal(rows.block[0], together.block[0]);
    for (size_t left; (left = position - fixture.memories[0]->sequence->length) > 0;)
        run_rows(left < MAX_ROWS ? left : MAX_ROWS, 0);
    trace.n_attention = 0;
    run_rows(n, n);
    if (trace.n_attention == 0)
        return 0;
    assert_int_equal(trace.n_attention, fixture.cuda.hparams.n_layers);
    if (found->block[0] == together.block[0] && found->shared_bytes == together.shared_bytes)
        return 2;
    assert_int_equal(found->block[0], rows.block[0]);
    assert_int_equal(found->shared_bytes, rows.shared_bytes);
    return 1;
}

/* Three rows of a draft or more attend to codes together where that is faster, from position 3072 on with heads of 128:
 * by another graph than before. */
TEST(late_drafts_attend_together)
{
    enum { LONG = 4096 };
    static const struct model long_dense = { "dense", &dense, false };
    static const struct way aura4 = { "aura4", "", 9, false, 4 }, deterministic = { "", "", 9, true, 4 },
                            aura3 = { "aura3", "", 9, false, 3 };
    set_up(&long_dense, &aura4, LONG);
    assert_int_equal(tiles_of_draft(3068, 4), 1);
    assert_int_equal(tiles_of_draft(3072, 4), 2);
    assert_int_equal(tiles_of_draft(3076, 4), 0);
    assert_int_equal(tiles_of_draft(3080, 2), 1);
    assert_int_equal(tiles_of_draft(3082, 3), 2);
    tear_down();
    set_up(&long_dense, &deterministic, LONG);
    assert_int_equal(tiles_of_draft(3072, 4), 1);
    tear_down();
    set_up(&long_dense, &aura3, LONG); /* without a built-in variant */
    (void)tiles_of_draft(3072, 4);
    assert_int_not_equal(trace.attention.block[0], 8 * 32);
    tear_down();
    unsetenv("QN_CUDA");
}

int main(void)
{
#ifdef __clang__
    return 77; /* arguments are hashed with the padding of their structs, which gcc clears and clang does not */
#else
    return run_all_tests();
#endif
}
