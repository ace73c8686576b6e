/* Of macOS' header what src/base/darwin/ uses. test_darwin.c has the function. */
#include <stddef.h>

int sysctlbyname(const char *name, void *value, size_t *size, void *new_value, size_t new_size);
