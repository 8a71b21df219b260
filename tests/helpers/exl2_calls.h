// Run the kernels of exllamav2 for every block and thread, one after the other.
extern "C" void shuffle(uint32_t* words, int k, int n, const int* rows) {
    for (blockIdx.x = 0; blockIdx.x < (n + 31) / 32; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < 32; threadIdx.x++)
            shuffle_kernel(words, k, n, rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]);
}

extern "C" void reconstruct(const uint32_t* words, const uint16_t* perm, const uint32_t* scale, const uint16_t* greatest,
                            const uint16_t* map, int k, int n, int groups, uint16_t* out, const int* rows) {
    half* nowhere = (half*)malloc(2 * (size_t)k * n);
    for (blockIdx.y = 0; blockIdx.y < (k + 127) / 128; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < (n + 127) / 128; blockIdx.x++)
            for (int again = 0; again < 2; again++)  // the first time fills what the threads of a block share
                for (threadIdx.x = 0; threadIdx.x < 128; threadIdx.x++)
                    reconstruct_kernel(words, perm, scale, (const half*)greatest, map, k, n, groups, again ? (half*)out : nowhere,
                                       rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], 0, k);
    free(nowhere);
}

extern "C" void pack_scales(const uint16_t* codes, uint32_t* out, int rows, int columns) {
    blockDim.x = blockDim.y = 1, threadIdx.x = threadIdx.y = 0;
    for (blockIdx.y = 0; blockIdx.y < rows; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < columns; blockIdx.x++) pack_rows_4_kernel(codes, out, rows, columns);
}

template <int bits> void pack_of(const uint16_t* levels, uint32_t* out, int rows, int columns) {
    blockDim.x = blockDim.y = 1, threadIdx.x = threadIdx.y = 0;
    for (blockIdx.y = 0; blockIdx.y < rows; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < columns; blockIdx.x++) pack_columns_kernel<bits>(levels, out, rows, columns);
}

extern "C" void pack_levels(const uint16_t* levels, uint32_t* out, int rows, int columns, int bits) {
    if (bits == 2) pack_of<2>(levels, out, rows, columns);
    if (bits == 3) pack_of<3>(levels, out, rows, columns);
    if (bits == 4) pack_of<4>(levels, out, rows, columns);
    if (bits == 5) pack_of<5>(levels, out, rows, columns);
    if (bits == 6) pack_of<6>(levels, out, rows, columns);
    if (bits == 8) pack_of<8>(levels, out, rows, columns);
}
