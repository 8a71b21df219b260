// What the kernels of exllamav2 need of CUDA, on a CPU: see make_exl2_fixtures.py.
// half is IEEE half, each operation rounded once, as the GPU rounds.
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <algorithm>
using std::min; using std::max;
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __syncthreads()
typedef _Float16 half;
struct half2 { half x, y; };
struct int4 { int x,y,z,w; };
struct dim3 { int x=0,y=0,z=0; };
static dim3 blockIdx, threadIdx, blockDim;
static inline half __float2half_rn(float f){return (half)f;}
static inline float __half2float(half h){return (float)h;}
static inline half __int2half_rn(int i){return (half)(float)i;}
static inline half __hmul(half a, half b){return (half)((float)a*(float)b);}
static inline half __hsub(half a, half b){return (half)((float)a-(float)b);}
static inline half2 __halves2half2(half a, half b){return {a,b};}
static inline half2 __half2half2(half a){return {a,a};}
static inline half2 __hmul2(half2 a, half2 b){return {__hmul(a.x,b.x),__hmul(a.y,b.y)};}
static inline half2 __hadd2(half2 a, half2 b){return {(half)((float)a.x+(float)b.x),(half)((float)a.y+(float)b.y)};}
static inline half2 __hfma2(half2 a, half2 b, half2 c){return {(half)((double)a.x*(double)b.x+(double)c.x),(half)((double)a.y*(double)b.y+(double)c.y)};}
static inline half __low2half(half2 a){return a.x;}
static inline half __high2half(half2 a){return a.y;}
static inline uint32_t __funnelshift_rc(uint32_t lo, uint32_t hi, int s){ if(s>32)s=32; return s==32?hi: s==0?lo:(lo>>s)|(hi<<(32-s)); }
#define THREADS_X 32
#define THREADS_Y 32
#define BLOCK_KN_SIZE 128
