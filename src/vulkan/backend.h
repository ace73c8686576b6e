/* The Vulkan backend, for the device registry. */
#ifndef QN_VULKAN_BACKEND_H
#define QN_VULKAN_BACKEND_H

#include "device/backend.h"

extern const qn_backend qn_vulkan_backend;

#endif
