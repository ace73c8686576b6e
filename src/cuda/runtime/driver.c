/* Loading libcuda and filling the function table; conversion of results into statuses. */
#include "cuda/runtime/driver.h"

#include "base/library.h"
#include "base/process.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { DRIVER_API = 12000 }; /* prototypes as of CUDA 12.0 */

typedef qn_cu_result (*get_proc_address)(const char *name, void **function, int version, uint64_t flags, int *found);

static struct {
    pthread_once_t once;
    qn_cuda_driver table;
    qn_status status;
    pid_t process;                /* the process that called cuInit: the driver does not work in its forked children */
    char text[QN_ERROR_TEXT_MAX]; /* error text of the failure, for later calls in any thread */
} loaded = { .once = PTHREAD_ONCE_INIT };

/* Finds a function of the driver: by cuGetProcAddress (`ask`) first, which profilers and other tools intercept; then
 * the exported symbol with the same prototype. */
static void *find(void *library, get_proc_address ask, const char *name, const char *symbol)
{
    void *function = NULL;
    int found = 0;
    if (ask && ask(name, &function, DRIVER_API, 0, &found) == QN_CU_SUCCESS && function)
        return function;
    return qn_library_find(library, symbol);
}

/* Sets a function pointer of the table. ISO C has no conversion from a data pointer to a function pointer; POSIX
 * guarantees that copying the bytes works. */
static void set(void *member, void *function)
{
    memcpy(member, &function, sizeof function);
}

static qn_status load(qn_cuda_driver *table)
{
    void *library = qn_library_open(qn_library_cuda);
    if (!library)
        return qn_fail(QN_ERR_UNSUPPORTED, "no NVIDIA driver: %s cannot be loaded (%s)", qn_library_cuda,
                       qn_library_error());
    get_proc_address ask = NULL;
    set(&ask, qn_library_find(library, "cuGetProcAddress_v2"));
#define FIND(name, symbol, prototype)                                                                                  \
    set(&table->name, find(library, ask, #name, symbol));                                                              \
    if (!table->name)                                                                                                  \
        return qn_fail(QN_ERR_UNSUPPORTED, "the NVIDIA driver has no " #name ", it is too old: CUDA 12.0 is needed");
#define FIND_OPTIONAL(name, symbol, prototype) set(&table->name, find(library, ask, #name, symbol));
    QN_CU_FUNCTIONS(FIND)
    QN_CU_OPTIONAL_FUNCTIONS(FIND_OPTIONAL)
    return QN_CU(table, cuInit, 0);
}

static void load_once(void)
{
    loaded.process = getpid();
    loaded.status = load(&loaded.table);
    if (loaded.status)
        memcpy(loaded.text, qn_error_text(), sizeof loaded.text);
}

qn_status qn_cuda_driver_load(const qn_cuda_driver **driver)
{
    pthread_once(&loaded.once, load_once);
    *driver = NULL;
    if (loaded.status)
        return qn_fail(loaded.status, "%s", loaded.text);
    QN_TRY(qn_process_check(loaded.process, "CUDA", "connection to the driver"));
    *driver = &loaded.table;
    return QN_OK;
}

qn_status qn_cu_check(const qn_cuda_driver *driver, qn_cu_result code, const char *call)
{
    if (code == QN_CU_SUCCESS)
        return QN_OK;
    const char *name = NULL, *text = NULL;
    if (driver->cuGetErrorName(code, &name) != QN_CU_SUCCESS || !name)
        name = "unnamed error";
    if (driver->cuGetErrorString(code, &text) != QN_CU_SUCCESS || !text)
        text = "failed";
    const qn_status status = code == QN_CU_OUT_OF_MEMORY ? QN_ERR_MEMORY
                             : code == QN_CU_NO_DEVICE   ? QN_ERR_UNSUPPORTED
                                                         : QN_ERR_DEVICE;
    return qn_fail(status, "%s: %s (%s, %d)", call, text, name, code);
}
