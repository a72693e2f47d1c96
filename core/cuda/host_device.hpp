// Marks functions that run on the CPU and on a device.
#pragma once

#ifdef __CUDACC__
#define YOKE_HOST_DEVICE __host__ __device__
#else
#define YOKE_HOST_DEVICE
#endif
