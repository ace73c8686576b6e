/* The CUDA backend, for the device registry. */
#ifndef QN_CUDA_BACKEND_H
#define QN_CUDA_BACKEND_H

#include "device/backend.h"

extern const qn_backend qn_cuda_backend;

#endif
