/* Replaces bench_serve*.c if libcurl was missing at build time. */
#include "cli/cli.h"

void qn_bench_serve_defaults(qn_args *args)
{
    (void)args;
}

int qn_cli_bench_serve(qn_args *args)
{
    qn_cli_error(
        "%s: this quern was built without libcurl, so it sends no requests; install libcurl4-gnutls-dev and build it "
        "again",
        args->operands[0]);
    return QN_EXIT_FAILED;
}
