/* Where kernel code comes from: the sources in order, fallback when a source has no code or invalid code, and damaged
 * or foreign files in the cache. nvcc is a script of the test, NVRTC is fake_nvrtc.c, the driver is helper_cuda.h's. */
#include "helper_cuda.h"
#include "helper_files.h"

#include "base/append.h"
#include "cuda/runtime/compile.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- A directory for the test, with a fake nvcc ---- */

static char work[64], cache[128], nvcc[128], runs[128], tmp[128];

/* The fake nvcc writes a "cubin" that contains the source and the options, and counts its runs. The file `mood` selects
 * a failure. */
static const char script[] =
    "#!/bin/sh\n"
    "here=$(dirname \"$0\")\n"
    "if [ \"$1\" = --version ]; then echo 'Cuda compilation tools, release 98.1, V98.1.5'; exit; fi\n"
    "echo run >>\"$here/runs\"\n"
    "mood=$(cat \"$here/mood\" 2>/dev/null)\n"
    "if [ \"$mood\" = fails ]; then\n"
    "    echo some chatter; echo 'a.cu(3): error: no such thing' >&2; exit 2\n"
    "fi\n"
    "if [ \"$mood\" = hangs ]; then sleep 60 & sleep 60; fi\n"
    "if [ \"$mood\" = chatters ]; then head -c 300000 /dev/zero | tr '\\0' x; fi\n"
    "if [ \"$mood\" = nothing ]; then exit 0; fi\n"
    "all=\"$*\"\n"
    "while [ $# -gt 1 ]; do\n"
    "    if [ \"$1\" = -o ]; then out=$2; fi\n"
    "    shift\n"
    "done\n"
    "include=$(printf '%s\\n' \"$all\" | sed 's/.*-I\\([^ ]*\\).*/\\1/')\n"
    "if [ \"$mood\" = garbage ]; then echo garbage >\"$out\"; exit; fi\n"
    "{ printf '\\177ELF'; head -c 60 /dev/zero; cat \"$1\" \"$include/cuda/kernels/module/a.h\"\n"
    "  printf '%s' \"$all\" | sed 's/.*\\(-gencode=[^ ]*.*\\) -o .*/\\1/'; head -c 1 /dev/zero; } >\"$out\"\n";

static void set_mood(const char *mood)
{
    char path[128];
    snprintf(path, sizeof path, "%s/mood", work);
    write_text(path, mood);
}

static int setup(void)
{
    snprintf(work, sizeof work, "/tmp/quern-test.XXXXXX");
    assert_non_null(mkdtemp(work));
    snprintf(cache, sizeof cache, "%s/home/.cache/quern", work); /* neither it nor home exists yet */
    snprintf(nvcc, sizeof nvcc, "%s/nvcc", work);
    snprintf(runs, sizeof runs, "%s/runs", work);
    snprintf(tmp, sizeof tmp, "%s/tmp", work);
    assert_int_equal(mkdir(tmp, 0700), 0);
    assert_int_equal(setenv("TMPDIR", tmp, 1), 0);
    unsetenv("QN_FAKE_NVRTC");
    write_text(nvcc, script);
    assert_int_equal(chmod(nvcc, 0700), 0);
    set_mood("fine");
    return 0;
}

static int n_entries(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (dir)
        closedir(dir);
    return n;
}

/* No compilation, failed or not, leaves temporary files. */
static int teardown(void)
{
    const int left = n_entries(tmp);
    assert_int_equal(remove_tree(work), 0);
    assert_int_equal(left, 0);
    return 0;
}

static int n_runs(void)
{
    struct stat st;
    return stat(runs, &st) == 0 ? (int)(st.st_size / 4) : 0;
}

/* ---- Kernels ---- */

#define TEXT(name, array)                                                                                              \
    {                                                                                                                  \
        name, array, array + sizeof array - 1                                                                          \
    }
#define SOURCE "#include \"cuda/kernels/module/a.h\"\nsource a\n"
#define HEADER "  #  include \"cuda/kernels/cuda.cuh\" // and no more\nheader a\n#include \"base/c_side.h\"\n"

static const char helpers[] = "helpers", header[] = HEADER, source_a[] = SOURCE, source_b[] = "source b";

static const qn_gpu_file files[] = {
    TEXT("cuda/kernels/cuda.cuh", helpers),
    TEXT("cuda/kernels/module/a.h", header),
    TEXT("cuda/kernels/module/a.cu", source_a),
    TEXT("cuda/kernels/module/b.cu", source_b),
};

static const qn_gpu_pipeline pipelines[] = {
    { "module/a.cu", "" },
    { "module/a.cu", "-DQN_N=1 -DQN_M=2" },
    { "module/b.cu", "" },
};

static const struct {
    unsigned char header[64];
    char text[16];
} image = { "\177ELF", "built in" }, compressed = { "\x50\xed\x55\xba", "compressed" };

static const qn_gpu_cubin cubins[] = {
    { "module/a.cu", "", "sm_80", (const uint8_t *)&image, (const uint8_t *)(&image + 1) },
    { "module/a.cu", "", "sm_90a", (const uint8_t *)&image, (const uint8_t *)(&image + 1) },
    { "module/b.cu", "", "sm_90a", (const uint8_t *)&compressed, (const uint8_t *)(&compressed + 1) },
};

static const qn_gpu_code sources = {
    .files = files, .n_files = 4, .pipelines = pipelines, .n_pipelines = 3, .compiler = ""
};
static const qn_gpu_code with_cubins = { .files = files,
                                         .n_files = 4,
                                         .pipelines = pipelines,
                                         .n_pipelines = 3,
                                         .cubins = cubins,
                                         .n_cubins = 3,
                                         .compiler = "nvcc of the build" };

static const qn_gpu_source plain = { "module/a.cu", "" }, with_parameters = { "module/a.cu", "n, m" },
                           plain_b = { "module/b.cu", "" };
static const qn_launch launch_a = { .variant.source = &plain, .function = "f", .args_bytes = FAKE_ARGS_BYTES };
static const qn_launch launch_b = { .variant.source = &plain_b, .function = "f", .args_bytes = FAKE_ARGS_BYTES };
static const qn_launch launch_defines = { .variant = { &with_parameters, { 1, 2 } },
                                          .function = "f",
                                          .args_bytes = FAKE_ARGS_BYTES };

static qn_cuda_tools tools(const qn_gpu_code *code)
{
    return (
        qn_cuda_tools){ .cache_folder = cache, .nvcc = nvcc, .nvrtc = QN_FAKE_NVRTC, .nvcc_seconds = 60, .code = code };
}

/* ---- One lookup of a kernel ---- */

struct lookup {
    qn_status status;
    qn_pipeline_info info;
    char log[2048], error[QN_ERROR_TEXT_MAX], image[512];
};

static void on_log(void *user, const char *line)
{
    struct lookup *l = user;
    qn_text_buffer log = qn_append_after(l->log, sizeof l->log);
    qn_append(&log, "%s\n", line);
}

/* Opens a new device, as a new process would. */
static struct lookup lookup(const qn_cuda_tools *t, const char *refuses, const qn_launch *launch)
{
    struct lookup l = { 0 };
    qn_cuda *device;
    const qn_cuda_params params = { .driver = fake_driver(), .tools = t, .on_log = on_log, .user = &l };
    fake.refuses = refuses;
    assert_ok(qn_cuda_open(&params, &device));
    l.status = qn_cuda_prepare(device, launch);
    if (l.status)
        snprintf(l.error, sizeof l.error, "%s", qn_error_text());
    assert_true(qn_cuda_pipeline(device, 0, &l.info));
    assert_false(qn_cuda_pipeline(device, 1, &(qn_pipeline_info){ 0 }));
    memcpy(l.image, fake.image, sizeof l.image);
    l.info.source = l.info.defines = NULL; /* freed with the device */
    l.info.failure = NULL;
    qn_cuda_close(device);
    fake_expect_empty();
    return l;
}

/* The same, of code that is found here. */
#define lookup_from(t, refuses, launch, origin, compiler)                                                              \
    expect_from(lookup(t, refuses, launch), origin, compiler, __LINE__)

static struct lookup expect_from(struct lookup l, qn_origin origin, const char *compiler, int line)
{
    label("line %d", line);
    if (l.status)
        print_error("%s\n", l.error);
    assert_ok(l.status);
    assert_string_equal(qn_origin_name(l.info.origin), qn_origin_name(origin));
    assert_string_equal(l.info.compiler, compiler);
    assert_true(l.info.bytes > 64);
    return l;
}

/* The path of the only file in the cache. */
static void cache_file(char *path, size_t size)
{
    DIR *dir = opendir(cache);
    assert_non_null(dir);
    int n = 0;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] != '.') {
            snprintf(path, size, "%s/%s", cache, entry->d_name);
            n++;
        }
    closedir(dir);
    assert_int_equal(n, 1);
}

/* ---- The order ---- */

TEST(test_built_in)
{
    const qn_cuda_tools t = tools(&with_cubins);
    const struct lookup l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_BUILT_IN, "nvcc of the build");
    assert_string_equal(l.image, "built in");
    assert_string_equal(l.log, "");
    const struct lookup packed = lookup_from(&t, NULL, &launch_b, QN_ORIGIN_BUILT_IN, "nvcc of the build");
    assert_string_equal(packed.image, "compressed");
    assert_string_equal(packed.log, "");
    assert_int_equal(n_runs(), 0);
    assert_int_equal(n_entries(cache), 0);
}

/* Built-in code is passed over if it has other definitions, or if the driver rejects it. */
TEST(test_built_in_passed_over)
{
    const qn_cuda_tools t = tools(&with_cubins);
    struct lookup l = lookup_from(&t, NULL, &launch_defines, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    l = lookup_from(&t, "built in", &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_contains(l.log, "module/a.cu: the driver rejects the built-in code: cuModuleLoadData: made to fail");
    l = lookup_from(&t, "built in", &launch_a, QN_ORIGIN_CACHE, "nvcc 98.1.5");
}

TEST(test_nvcc_then_cache)
{
    const qn_cuda_tools t = tools(&sources);
    struct lookup l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_memory_equal(l.image, SOURCE "  #", sizeof SOURCE + 2);
    assert_contains(l.log, "module/a.cu: compiled by nvcc 98.1.5 in ");
    assert_int_equal(n_runs(), 1);
    assert_int_equal(n_entries(cache), 1);
    for (int i = 0; i < 2; i++) {
        l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_CACHE, "nvcc 98.1.5");
        assert_memory_equal(l.image, SOURCE "  #", sizeof SOURCE + 2);
        assert_string_equal(l.log, "");
        assert_int_equal(n_runs(), 1);
    }
    l = lookup_from(&t, NULL, &launch_defines, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_contains(l.image, "-gencode=arch=compute_90a,code=sm_90a -DQN_N=1 -DQN_M=2");
    assert_int_equal(n_entries(cache), 2);
}

TEST(test_nvrtc)
{
    qn_cuda_tools t = tools(&sources);
    t.nvcc = "";
    struct lookup l = lookup_from(&t, NULL, &launch_defines, QN_ORIGIN_NVRTC, "NVRTC 99.7");
    assert_string_equal(l.image, "nvrtc|cuda/kernels/module/a.cu|" SOURCE "|cuda/kernels/module/a.h|" HEADER
                                 "|cuda/kernels/cuda.cuh|helpers|--gpu-architecture=sm_90a|--std=c++17|"
                                 "--device-as-default-execution-space|-DQN_N=1|-DQN_M=2|");
    l = lookup_from(&t, NULL, &launch_defines, QN_ORIGIN_CACHE, "NVRTC 99.7");
    assert_int_equal(n_runs(), 0);
}

/* Failures of nvcc, and its time limit: NVRTC is tried next; if that fails too, the error text has nvcc's reason. */
TEST(test_nvcc_fails)
{
    static const struct {
        const char *mood, *says;
    } cases[] = { { "fails", "a.cu(3): error: no such thing" },
                  { "nothing", "nvcc wrote no cubin" },
                  { "garbage", "not a cubin (8 bytes)" },
                  { "hangs", "still running after 1 s" } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct timespec begin, end;
        qn_cuda_tools t = tools(&sources);
        t.nvcc_seconds = !strcmp(cases[i].mood, "hangs") ? 1 : 60;
        t.nvrtc = "";
        set_mood(cases[i].mood);
        clock_gettime(CLOCK_MONOTONIC, &begin);
        struct lookup l = lookup(&t, NULL, &launch_a);
        clock_gettime(CLOCK_MONOTONIC, &end);
        assert_true(end.tv_sec - begin.tv_sec < 50); /* the script would sleep for 60 */
        assert_int_equal(l.status, QN_ERR_UNSUPPORTED);
        assert_contains(l.error, "module/a.cu: no code for sm_90a");
        assert_contains(l.error, cases[i].says);
        assert_null(strstr(l.error, "chatter"));
        assert_int_equal(n_entries(cache), 0);
    }
    set_mood("fails");
    qn_cuda_tools t = tools(&sources);
    lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVRTC, "NVRTC 99.7");
    set_mood("chatters"); /* more output than a pipe buffers, and than is stored */
    t.cache_folder = "";
    lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
}

TEST(test_nothing)
{
    qn_cuda_tools t = tools(&sources);
    t.nvcc = t.nvrtc = "";
    struct lookup l = lookup(&t, NULL, &launch_a);
    assert_int_equal(l.status, QN_ERR_UNSUPPORTED);
    assert_contains(l.error, "none is built in, and no compiler may be used");
    t.nvcc = "/nonexistent/nvcc";
    t.nvrtc = "/nonexistent/libnvrtc.so";
    l = lookup(&t, NULL, &launch_a);
    assert_int_equal(l.status, QN_ERR_UNSUPPORTED);
    assert_contains(l.error, "/nonexistent/nvcc: cannot be run");
    assert_contains(l.error, "no NVRTC: /nonexistent/libnvrtc.so");
    t = tools(&sources);
    t.nvcc = "";
    setenv("QN_FAKE_NVRTC", "fails", 1);
    l = lookup(&t, NULL, &launch_a);
    assert_int_equal(l.status, QN_ERR_UNSUPPORTED);
    assert_contains(l.error, "NVRTC failed for sm_90a: cuda/kernels/module/a.cu(1): error: requested by the test");
    assert_null(strstr(l.error, "more"));

    /* a failure is kept: nvcc does not run again */
    qn_cuda *device;
    set_mood("fails");
    t = tools(&sources);
    t.nvrtc = "";
    assert_ok(qn_cuda_open(&(qn_cuda_params){ .driver = fake_driver(), .tools = &t }, &device));
    for (int i = 0; i < 3; i++) {
        assert_fails(qn_cuda_prepare(device, &launch_a), QN_ERR_UNSUPPORTED, "no such thing");
    }
    assert_int_equal(n_runs(), 1);
    qn_cuda_close(device);
}

TEST(test_finding_nvcc)
{
    char *found, *path = strdup(getenv("PATH")), folders[256];
    assert_non_null(path);
    setenv("QN_NVCC", nvcc, 1);
    assert_ok(qn_nvcc_find(&found));
    assert_string_equal(found, nvcc);
    free(found);
    setenv("QN_NVCC", "", 1); /* none at all */
    assert_ok(qn_nvcc_find(&found));
    assert_null(found);
    setenv("QN_NVCC", "/nonexistent", 1);
    assert_fails(qn_nvcc_find(&found), QN_ERR_INVALID, "QN_NVCC: '/nonexistent'");
    unsetenv("QN_NVCC");
    unsetenv("CUDA_HOME");
    unsetenv("CUDA_PATH");
    snprintf(folders, sizeof folders, ":.:/nonexistent:%s", work);
    setenv("PATH", folders, 1);
    assert_ok(qn_nvcc_find(&found));
    assert_string_equal(found, nvcc);
    free(found);
    setenv("PATH", path, 1);
    free(path);
}

/* ---- The cache's files ---- */

/* NVRTC only: faster, because no process is started. */
static qn_cuda_tools without_nvcc(void)
{
    qn_cuda_tools t = tools(&sources);
    t.nvcc = "";
    return t;
}

/* The file is rejected, logged as invalid, and replaced by one equal to the original. */
static void expect_replaced(const qn_cuda_tools *t, const char *path, const unsigned char *data, size_t size)
{
    struct lookup l = lookup_from(t, NULL, &launch_a, QN_ORIGIN_NVRTC, "NVRTC 99.7");
    assert_contains(l.log, path);
    assert_contains(l.log, "it is compiled again");
    assert_file(path, data, size);
}

TEST(test_damaged)
{
    const qn_cuda_tools t = without_nvcc();
    unsigned char *data;
    char path[512];
    size_t size;
    (void)lookup(&t, NULL, &launch_a);
    cache_file(path, sizeof path);
    data = read_file(path, &size);
    unsigned char *bad = malloc(size + 1);
    assert_non_null(bad);
    /* truncated, within the header and within the payload; and longer */
    const size_t sizes[] = { 0, 1, 8, 100, size / 2, size - 1, size + 1 };
    memcpy(bad, data, size);
    bad[size] = 0;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        write_file(path, bad, sizes[i]);
        expect_replaced(&t, path, data, size);
    }
    /* a flipped bit in every fifth byte, which covers every field of the header */
    for (size_t at = 0; at < size; at += 5) {
        memcpy(bad, data, size);
        bad[at] ^= 0x20;
        write_file(path, bad, size);
        expect_replaced(&t, path, data, size);
    }
    free(bad);
    free(data);
}

TEST(test_foreign)
{
    const qn_cuda_tools t = without_nvcc();
    unsigned char *data, *other;
    char path[512], path_of_other[512];
    size_t size, size_of_other;
    (void)lookup(&t, NULL, &launch_defines);
    cache_file(path_of_other, sizeof path_of_other);
    other = read_file(path_of_other, &size_of_other);
    assert_int_equal(unlink(path_of_other), 0);
    (void)lookup(&t, NULL, &launch_a);
    cache_file(path, sizeof path);
    data = read_file(path, &size);
    write_file(path, other, size_of_other); /* a valid file of another kernel */
    expect_replaced(&t, path, data, size);
    write_text(path,
               "Dear diary, this is a text of some length, though not of much interest, and certainly not a cubin "
               "that quern has put here; it only happens to have a name as one of those would have had.");
    expect_replaced(&t, path, data, size);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* without a writer; anything but a regular file is not removed */
    struct lookup l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVRTC, "NVRTC 99.7");
    assert_contains(l.log, "is not a regular file; it is compiled again");
    assert_contains(l.log, "the kernel is not cached");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVRTC, "NVRTC 99.7");
    assert_contains(l.log, "the kernel is not cached");
    assert_int_equal(rmdir(path), 0);
    free(data);
    free(other);
}

/* An undamaged cubin that the driver rejects, for example from a compiler newer than the driver. */
TEST(test_refused)
{
    qn_cuda_tools t = tools(&sources);
    t.nvcc = "";
    struct lookup l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVRTC, "NVRTC 99.7");
    t.nvcc = nvcc;
    l = lookup_from(&t, "nvrtc|", &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_contains(l.log, "the driver rejects it");
    l = lookup_from(&t, "nvrtc|", &launch_a, QN_ORIGIN_CACHE, "nvcc 98.1.5");
}

/* Without write access to the cache directory, the kernel is used without being cached. */
TEST(test_no_place)
{
    qn_cuda_tools t = tools(&sources);
    char file[128], below[160], *folder;
    snprintf(file, sizeof file, "%s/file", work);
    snprintf(below, sizeof below, "%s/file/quern", work);
    write_text(file, "");
    t.cache_folder = below;
    struct lookup l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_contains(l.log, "the kernel is not cached");
    t.cache_folder = "/proc/quern"; /* not writable even for root */
    l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_contains(l.log, "the kernel is not cached");
    if (geteuid() != 0) {
        snprintf(below, sizeof below, "%s/locked", work);
        assert_int_equal(mkdir(below, 0500), 0);
        t.cache_folder = below;
        l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
        assert_contains(l.log, "the kernel is not cached");
    }

    /* the user's cache directory */
    setenv("HOME", work, 1);
    setenv("XDG_CACHE_HOME", "not/absolute", 1);
    assert_ok(qn_code_folder(&folder));
    snprintf(below, sizeof below, "%s/.cache/quern", work);
    assert_string_equal(folder, below);
    free(folder);
    setenv("XDG_CACHE_HOME", "/elsewhere", 1);
    assert_ok(qn_code_folder(&folder));
    assert_string_equal(folder, "/elsewhere/quern");
    free(folder);
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    assert_ok(qn_code_folder(&folder));
    assert_null(folder);
    t.cache_folder = NULL;
    l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_null(strstr(l.log, "not cached"));
}

/* ---- Keys ---- */

static qn_code_key key(const char *arch, const char *defines, const qn_gpu_file *const *list, size_t n)
{
    return qn_cubin_key_of(arch, defines, list, n);
}

TEST(test_keys)
{
    static const char source_and_blank[] = SOURCE " ", header_and_x[] = HEADER "x";
    static const qn_gpu_file changed_source = TEXT("cuda/kernels/module/a.cu", source_and_blank);
    static const qn_gpu_file changed_header = TEXT("cuda/kernels/module/a.h", header_and_x);
    static const qn_gpu_file renamed = TEXT("cuda/kernels/module/c.cu", source_a);
    const qn_gpu_file *list[QN_GPU_MAX_FILES];
    size_t n;
    assert_ok(qn_gpu_code_files(&sources, "module/a.cu", list, &n));
    assert_int_equal(n, 3); /* direct and indirect includes are counted */
    assert_ptr_equal(list[0], &files[2]);
    assert_ptr_equal(list[1], &files[1]);
    assert_ptr_equal(list[2], &files[0]);
    assert_int_equal(qn_gpu_code_files(&sources, "module/none.cu", list, &n), QN_ERR_INVALID);
    assert_ok(qn_gpu_code_files(&sources, "module/a.cu", list, &n));
    const qn_gpu_file *other_source[] = { &changed_source, list[1], list[2] };
    const qn_gpu_file *other_header[] = { list[0], &changed_header, list[2] };
    const qn_gpu_file *other_name[] = { &renamed, list[1], list[2] };
    const qn_gpu_file *other_order[] = { list[0], list[2], list[1] };
    const qn_code_key keys[] = {
        key("sm_90a", "", list, 3),         key("sm_80", "", list, 3),          key("sm_90a", "-DX", list, 3),
        key("sm_90a", "", other_source, 3), key("sm_90a", "", other_header, 3), key("sm_90a", "", other_name, 3),
        key("sm_90a", "", other_order, 3),  key("sm_90a", "", list, 2),
    };
    for (size_t i = 0; i < COUNT(keys); i++)
        for (size_t j = 0; j < i; j++) {
            label("keys %zu and %zu", i, j);
            assert_memory_not_equal(&keys[i], &keys[j], sizeof keys[i]);
        }
    char name[QN_CODE_NAME_MAX];
    const qn_code_key again = key("sm_90a", "", list, 3);
    assert_memory_equal(&again, &keys[0], sizeof again);
    qn_code_file_name(&qn_cubin_files, &again, name);
    assert_int_equal(strlen(name), 32 + strlen(".cubin"));
    assert_int_equal(strspn(name, "0123456789abcdef"), 32);
    assert_string_equal(name + 32, ".cubin");
}

/* A changed source has another key and cache file; the old file stays valid for the old source. */
TEST(test_changed_source)
{
    qn_gpu_file changed[4];
    static const char text[] = "source a, better\n#include \"cuda/kernels/module/a.h\"\n";
    memcpy(changed, files, sizeof changed);
    changed[2].text = text;
    changed[2].end = text + sizeof text - 1;
    qn_gpu_code code = sources;
    qn_cuda_tools t = tools(&sources);
    struct lookup l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    code.files = changed;
    t.code = &code;
    l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
    assert_memory_equal(l.image, "source a, better", 16);
    assert_int_equal(n_entries(cache), 2);
    t.code = &sources;
    l = lookup_from(&t, NULL, &launch_a, QN_ORIGIN_CACHE, "nvcc 98.1.5");
}

/* ---- Concurrency ---- */

TEST(test_threads)
{
    const qn_cuda_tools t = tools(&sources);
    qn_cuda *device;
    qn_pipeline_info info;
    assert_ok(qn_cuda_open(&(qn_cuda_params){ .driver = fake_driver(), .tools = &t }, &device));
    assert_ok(qn_cuda_load_pipelines(device));
    assert_ok(qn_cuda_load_pipelines(device));
    assert_int_equal(n_runs(), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(qn_cuda_pipeline(device, i, &info));
        assert_string_equal(info.source, pipelines[i].source);
        assert_string_equal(info.defines, pipelines[i].defines);
        assert_string_equal(qn_origin_name(info.origin), "nvcc");
        assert_null(info.failure);
    }
    assert_false(qn_cuda_pipeline(device, 3, &info));
    assert_int_equal(fake.loads, 3);
    qn_cuda_close(device);
    fake_expect_empty();

    set_mood("fails"); /* one is cached, two fail: all are tried, the first failure is returned */
    qn_cuda_tools no_nvrtc = t;
    char path[512];
    size_t n_files;
    uint64_t bytes;
    assert_ok(qn_code_file_clear(cache, &n_files, &bytes));
    assert_int_equal(n_files, 3);
    set_mood("fine");
    (void)lookup(&t, NULL, &launch_defines);
    cache_file(path, sizeof path);
    set_mood("fails");
    no_nvrtc.nvrtc = "";
    assert_ok(qn_cuda_open(&(qn_cuda_params){ .driver = fake_driver(), .tools = &no_nvrtc }, &device));
    assert_fails(qn_cuda_load_pipelines(device), QN_ERR_UNSUPPORTED, "module/a.cu: no code");
    assert_true(qn_cuda_pipeline(device, 1, &info) && !info.failure);
    assert_true(qn_cuda_pipeline(device, 2, &info) && info.failure);
    qn_cuda_close(device);
}

/* Eight processes start with an empty cache: each gets its kernel, and the cache then has one valid file. */
TEST(test_processes)
{
    const qn_cuda_tools t = tools(&sources);
    pid_t children[8];
    for (size_t i = 0; i < 8; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            qn_cuda *device;
            bool ok = qn_cuda_open(&(qn_cuda_params){ .driver = fake_driver(), .tools = &t }, &device) == QN_OK;
            ok = ok && qn_cuda_prepare(device, &launch_a) == QN_OK && !strncmp(fake.image, SOURCE, sizeof SOURCE - 1);
            qn_cuda_close(device);
            _exit(ok ? 0 : 1);
        }
    }
    for (size_t i = 0; i < 8; i++) {
        int state;
        assert_int_equal(waitpid(children[i], &state, 0), children[i]);
        assert_true(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
    const int before = n_runs();
    lookup_from(&t, NULL, &launch_a, QN_ORIGIN_CACHE, "nvcc 98.1.5");
    assert_int_equal(n_runs(), before);
    assert_int_equal(n_entries(cache), 1);
}

TEST(test_clear)
{
    const qn_cuda_tools t = tools(&sources);
    static const char *const kept[] = { "notes.txt", "0123456789abcdef0123456789abcdeX.cubin", "short.cubin",
                                        "0123456789abcdef0123456789abcdef.cubin.bak" };
    char path[512];
    size_t n_files;
    uint64_t bytes;
    assert_ok(qn_code_file_clear(cache, &n_files, &bytes)); /* the directory does not exist */
    assert_int_equal(n_files, 0);
    (void)lookup(&t, NULL, &launch_a);
    (void)lookup(&t, NULL, &launch_defines);
    snprintf(path, sizeof path, "%s/.0123456789abcdef0123456789abcdef.cubin.k2j3h4.quern.part", cache); /* of a writer
                                                                                                           that was
                                                                                                           killed */
    write_text(path, "part");
    for (size_t i = 0; i < COUNT(kept); i++) {
        snprintf(path, sizeof path, "%s/%s", cache, kept[i]);
        write_text(path, "mine");
    }
    assert_ok(qn_code_file_clear(cache, &n_files, &bytes));
    assert_int_equal(n_files, 3);
    assert_true(bytes > 100);
    assert_int_equal(n_entries(cache), 4);
    lookup_from(&t, NULL, &launch_a, QN_ORIGIN_NVCC, "nvcc 98.1.5");
}

TEST_EVERY(setup, teardown)
