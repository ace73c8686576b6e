/* Replaces serve.c if libmicrohttpd was missing at build time. */
#include "cli/cli.h"

void qn_serve_defaults(qn_args *args)
{
    (void)args;
}

int qn_cli_serve(qn_args *args)
{
    (void)args;
    qn_cli_error(
        "serve: this quern was built without libmicrohttpd, so it has no server; install libmicrohttpd-dev and build it "
        "again");
    return QN_EXIT_FAILED;
}
