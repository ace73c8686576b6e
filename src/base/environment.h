/* Variables of the environment that name files, in the encoding of paths: UTF-8 on every system. */
#ifndef QN_BASE_ENVIRONMENT_H
#define QN_BASE_ENVIRONMENT_H

/* qn_environment - the value of a variable; NULL if it is not set or there is no memory. It is not changed, and valid
 * until the program ends, or where that is getenv's, until the environment is changed. Any thread. */
const char *qn_environment(const char *name);

#endif
