/* Shared libraries that are loaded while the program runs, and the names that drivers have on this system. */
#ifndef QN_BASE_LIBRARY_H
#define QN_BASE_LIBRARY_H

/* NVIDIA's driver, Vulkan's loader, and the names of NVRTC, the newest first, with a NULL at the end. */
extern const char qn_library_cuda[], qn_library_vulkan[];
extern const char *const qn_library_nvrtc[];

/* qn_library_open - loads a library by its name, which the system finds, or its path. NULL, with qn_library_error. It
 * stays loaded: threads that a driver has started may run its code at any time. */
void *qn_library_open(const char *name);

/* qn_library_find - the address of a function; NULL if there is none. */
void *qn_library_find(void *library, const char *function);

/* qn_library_error - why the last qn_library_open of this thread has failed. */
const char *qn_library_error(void);

#endif
