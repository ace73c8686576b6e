/* Checks which process made an object. */
#include "base/process.h"

#include <unistd.h>

bool qn_process_is(pid_t maker)
{
    return getpid() == maker;
}

qn_status qn_process_check(pid_t maker, const char *function, const char *what)
{
    const pid_t here = getpid();
    if (here == maker)
        return QN_OK;
    return qn_fail(
        QN_ERR_INVALID,
        "%s: the %s was made by process %ld, and this is process %ld: threads, locks and GPU contexts do not survive a "
        "fork. Make it in each process, started by exec or, with Python's multiprocessing, by the start method "
        "\"spawn\"",
        function, what, (long)maker, (long)here);
}
