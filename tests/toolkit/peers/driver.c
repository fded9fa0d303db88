/* A stand-in for the part of CuTe DSL's runtime library that talks to the driver: no GPU, and nothing runs.
   The launch of a kernel is handed to `launched`, with the driver's own cudaLaunchConfig_t and parameters. */

int (*launched)(const void *config, void **parameters);

int _cudaLaunchKernelEx(const void *config, const void *kernel, void **parameters) {
  (void)kernel;
  return launched(config, parameters);
}

int cuda_dialect_init_library_once(void **state, void *init, void *load, void *raise) {
  (void)state, (void)init, (void)load, (void)raise;
  return 0;
}

void cuda_dialect_unload_library_once(void **state) { (void)state; }

int _cudaGetDevice(int *device) {
  *device = 0;
  return 0;
}

int _cudaSetDevice(int device) { return device; }
