/* quern info --plan. */
#ifndef QN_CLI_INFO_PLAN_H
#define QN_CLI_INFO_PLAN_H

/* qn_print_plan - print the operations of a model file; returns the exit status. */
int qn_print_plan(const char *path);

#endif
