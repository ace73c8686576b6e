/* Launches and graphs; with QN_CUDA_DELAY each comes after a delay (provoke.h). */
#include "cuda/runtime/runtime.h"

#include "cuda/runtime/context.h"

#include <stdlib.h>

struct qn_cuda_graph {
    qn_cu_graph_exec exec;
};

qn_status qn_cuda_launch(qn_cuda *device, qn_cuda_stream stream, const qn_launch *launch, const void *args)
{
    QN_TRY(qn_cuda_delay(device, stream, launch->pdl));
    return qn_cuda_launch_now(device, stream, launch, args);
}

/* ---- Graphs ---- */

/* Captures in relaxed mode: a kernel that was not prepared may be compiled and loaded during capture. */
qn_status qn_cuda_capture_begin(qn_cuda *device, qn_cuda_stream stream)
{
    QN_TRY(qn_cuda_make_current(device));
    return QN_CU(device->driver, cuStreamBeginCapture, stream, QN_CU_CAPTURE_RELAXED);
}

static qn_status make_graph(qn_cuda *device, qn_cu_graph captured, qn_cuda_graph **graph)
{
    const qn_cuda_driver *driver = device->driver;
    qn_cu_update_info info = { 0 };
    if (*graph && driver->cuGraphExecUpdate((*graph)->exec, captured, &info) == QN_CU_SUCCESS)
        return QN_OK;
    qn_cu_graph_exec exec;
    QN_TRY(QN_CU(driver, cuGraphInstantiateWithFlags, &exec, captured, 0));
    if (!*graph)
        *graph = calloc(1, sizeof **graph);
    if (!*graph) {
        (void)driver->cuGraphExecDestroy(exec);
        return qn_fail(QN_ERR_MEMORY, "no memory for a graph");
    }
    if ((*graph)->exec)
        (void)driver->cuGraphExecDestroy((*graph)->exec);
    (*graph)->exec = exec;
    return QN_OK;
}

qn_status qn_cuda_capture_end(qn_cuda *device, qn_cuda_stream stream, qn_cuda_graph **graph)
{
    qn_cu_graph captured = NULL;
    QN_TRY(qn_cuda_make_current(device));
    qn_status status = QN_CU(device->driver, cuStreamEndCapture, stream, &captured);
    if (!status && graph)
        status = make_graph(device, captured, graph);
    if (captured)
        (void)device->driver->cuGraphDestroy(captured);
    return status;
}

qn_status qn_cuda_graph_launch(qn_cuda *device, qn_cuda_graph *graph, qn_cuda_stream stream)
{
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(qn_cuda_delay(device, stream, false));
    return QN_CU(device->driver, cuGraphLaunch, graph->exec, stream);
}

void qn_cuda_graph_free(qn_cuda *device, qn_cuda_graph *graph)
{
    if (!graph)
        return;
    if (!qn_cuda_make_current(device))
        (void)device->driver->cuGraphExecDestroy(graph->exec);
    free(graph);
}
