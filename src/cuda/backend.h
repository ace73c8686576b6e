/* The CUDA backend, for the registry of devices. */
#ifndef QN_CUDA_BACKEND_H
#define QN_CUDA_BACKEND_H

#include "device/backend.h"

extern const qn_backend qn_cuda_backend;

#endif
