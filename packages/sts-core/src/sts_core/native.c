/* The teacher update on a CPU: masks.py draw for draw, without a mask in memory.
 *
 * Tensors are cut into tiles of 16,384 weights. A tile is updated for all teachers before the next, so that a bank of
 * teachers reads the student once. Tiles are independent: any split over threads gives the same result.
 */
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define SIMD 1
#else
#define SIMD 0
#endif

enum { TILE = 16384, CHUNK = 128, LANES = 8, CALLS_PER_BLOCK = TILE / 4, NUM_GAPS = 1024, GUIDE_SHIFT = 22 };
enum { ALL, LAYER, MODULE, CHANNEL, NEURON_DENSE, NEURON_SPARSE };
enum { FLOAT32, BFLOAT16, FLOAT16 };
enum { TAG_LAYER, TAG_MODULE, TAG_CHANNEL, TAG_NEURON, TAG_TIE, TAG_GAP, NUM_TAGS };

typedef struct {
    const void *student;
    float *const *teachers;
    int64_t numel, row; /* row: weights of one index of dim 0 */
    int64_t channels;   /* channels_last: size of dim 1, stored innermost; 0: row-major */
    int64_t student_type;
    uint64_t tags[NUM_TAGS];
} Tensor;

typedef struct {
    uint64_t seed, threshold; /* threshold: p * 2^32 */
    uint32_t step, kind;
    float momentum, pull; /* pull: 1 - m */
    uint32_t high[3], low[3]; /* 48-bit thresholds of a pair of weights: upper 16 and lower 32 bits */
    const uint32_t *gaps;     /* p^g * 2^32 for g = 1 .. NUM_GAPS */
    const uint32_t *guide;    /* smallest gap that a word with these upper 10 bits can mean */
} Rule;

/* ---- Philox4x32-10 ---- */

static inline void philox(uint32_t position, uint64_t tag, uint32_t step, uint64_t seed, uint32_t out[4]) {
    uint32_t c0 = position, c1 = (uint32_t)tag, c2 = (uint32_t)(tag >> 32), c3 = step;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b, c3 = (uint32_t)a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static inline int unit_updated(uint64_t tag, const Rule *r) {
    uint32_t words[4];
    philox(0, tag, r->step, r->seed, words);
    return words[0] >= r->threshold;
}

/* ---- the moving average of a run of weights; teachers differ from torch's lerp by at most one rounding ---- */

static inline float lerp(float t, float s, const Rule *r) {
    if (r->momentum == 0.0f) return s;
    return r->pull < 0.5f ? __builtin_fmaf(r->pull, s - t, t) : __builtin_fmaf(-r->momentum, s - t, s);
}

static void lerp_run(float *restrict t, const float *restrict s, int64_t n, const Rule *r) {
    if (r->momentum == 0.0f) {
        memcpy(t, s, (size_t)n * sizeof *t);
    } else if (r->pull < 0.5f) {
        for (int64_t i = 0; i < n; i++) t[i] = __builtin_fmaf(r->pull, s[i] - t[i], t[i]);
    } else {
        for (int64_t i = 0; i < n; i++) t[i] = __builtin_fmaf(-r->momentum, s[i] - t[i], s[i]);
    }
}

/* ---- neuron, dense: the masks of one chunk of 128 weights, all ones where updated ---- */

static void fix_ties(uint32_t mask[CHUNK], const uint32_t words[4][LANES], uint64_t chunk, const Tensor *x, const Rule *r) {
    for (int w = 0; w < 4; w++)
        for (int half = 0; half < 2; half++)
            for (int lane = 0; lane < LANES; lane++) {
                uint32_t bits = (words[w][lane] >> (16 * half)) & 0xFFFF, extra[4], ge[3];
                if (bits != r->high[0] && bits != r->high[1] && bits != r->high[2]) continue;
                philox((uint32_t)(2 * (chunk * LANES + lane) + half), x->tags[TAG_TIE], r->step, r->seed, extra);
                for (int k = 0; k < 3; k++)
                    ge[k] = bits > r->high[k] || (bits == r->high[k] && extra[w] >= r->low[k]);
                uint32_t *first = mask + 32 * w + 16 * half + lane;
                first[0] = 0u - ge[1];
                first[LANES] = 0u - (ge[0] ^ ge[1] ^ ge[2]);
            }
}

#if SIMD

/* hi and lo halves of eight 32 x 32 bit products */
static inline __m256i multiply(__m256i x, __m256i multiplier, __m256i *low) {
    __m256i even = _mm256_mul_epu32(x, multiplier);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), multiplier);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}

static inline void chunk_masks(uint32_t mask[CHUNK], uint64_t chunk, const Tensor *x, const Rule *r) {
    uint32_t base = (uint32_t)(chunk * LANES), k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32);
    __m256i c[4] = {_mm256_add_epi32(_mm256_set1_epi32((int)base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                    _mm256_set1_epi32((int)(uint32_t)x->tags[TAG_NEURON]),
                    _mm256_set1_epi32((int)(uint32_t)(x->tags[TAG_NEURON] >> 32)), _mm256_set1_epi32((int)r->step)};
    const __m256i m0 = _mm256_set1_epi32((int)0xD2511F53u), m1 = _mm256_set1_epi32((int)0xCD9E8D57u);
    for (int i = 0; i < 10; i++) {
        __m256i low0, low1, high0 = multiply(c[0], m0, &low0), high1 = multiply(c[2], m1, &low1);
        c[0] = _mm256_xor_si256(_mm256_xor_si256(high1, c[1]), _mm256_set1_epi32((int)k0));
        c[2] = _mm256_xor_si256(_mm256_xor_si256(high0, c[3]), _mm256_set1_epi32((int)k1));
        c[1] = low1, c[3] = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    const __m256i flip = _mm256_set1_epi16((short)0x8000); /* unsigned comparison by signed instructions */
    __m256i high[3], tied = _mm256_setzero_si256();
    for (int k = 0; k < 3; k++) high[k] = _mm256_xor_si256(_mm256_set1_epi16((short)r->high[k]), flip);
    for (int w = 0; w < 4; w++) {
        __m256i bits = _mm256_xor_si256(c[w], flip), gt[3];
        for (int k = 0; k < 3; k++) {
            gt[k] = _mm256_cmpgt_epi16(bits, high[k]);
            tied = _mm256_or_si256(tied, _mm256_cmpeq_epi16(bits, high[k]));
        }
        __m256i first = gt[1], second = _mm256_xor_si256(_mm256_xor_si256(gt[0], gt[1]), gt[2]);
        __m256i *out = (__m256i *)(mask + 32 * w);
        _mm256_storeu_si256(out + 0, _mm256_srai_epi32(_mm256_slli_epi32(first, 16), 16));
        _mm256_storeu_si256(out + 1, _mm256_srai_epi32(_mm256_slli_epi32(second, 16), 16));
        _mm256_storeu_si256(out + 2, _mm256_srai_epi32(first, 16));
        _mm256_storeu_si256(out + 3, _mm256_srai_epi32(second, 16));
    }
    if (__builtin_expect(!_mm256_testz_si256(tied, tied), 0)) {
        uint32_t words[4][LANES];
        for (int w = 0; w < 4; w++) _mm256_storeu_si256((__m256i *)words[w], c[w]);
        fix_ties(mask, (const uint32_t(*)[LANES])words, chunk, x, r);
    }
}

static inline void apply_chunk(float *restrict t, const float *restrict s, const uint32_t *mask, const Rule *r) {
    const __m256 pull = _mm256_set1_ps(r->pull), keep = _mm256_set1_ps(-r->momentum);
    const int copy = r->momentum == 0.0f, near = r->pull < 0.5f;
    for (int i = 0; i < CHUNK; i += LANES) {
        __m256 old = _mm256_loadu_ps(t + i), new = _mm256_loadu_ps(s + i), gap = _mm256_sub_ps(new, old);
        if (!copy) new = near ? _mm256_fmadd_ps(pull, gap, old) : _mm256_fmadd_ps(keep, gap, new);
        _mm256_storeu_ps(t + i, _mm256_blendv_ps(old, new, _mm256_loadu_ps((const float *)(mask + i))));
    }
}

#else

static inline void chunk_masks(uint32_t mask[CHUNK], uint64_t chunk, const Tensor *x, const Rule *r) {
    uint32_t words[4][LANES];
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t out[4];
        philox((uint32_t)(chunk * LANES + lane), x->tags[TAG_NEURON], r->step, r->seed, out);
        for (int w = 0; w < 4; w++) words[w][lane] = out[w];
    }
    for (int w = 0; w < 4; w++)
        for (int half = 0; half < 2; half++)
            for (int lane = 0; lane < LANES; lane++) {
                uint32_t bits = (words[w][lane] >> (16 * half)) & 0xFFFF;
                uint32_t both = bits > r->high[0], one = bits > r->high[1], none = bits > r->high[2];
                mask[32 * w + 16 * half + lane] = 0u - one;
                mask[32 * w + 16 * half + LANES + lane] = 0u - (both ^ one ^ none);
            }
    fix_ties(mask, (const uint32_t(*)[LANES])words, chunk, x, r);
}

static inline void apply_chunk(float *restrict t, const float *restrict s, const uint32_t *mask, const Rule *r) {
    for (int i = 0; i < CHUNK; i++) t[i] = mask[i] ? lerp(t[i], s[i], r) : t[i];
}

#endif

/* ---- one tile of one teacher; t and s point to the tile, begin and end are its row-major range in the tensor ---- */

/* Where the weight with this row-major index lies, counted from the tile's first. */
static inline int64_t address(const Tensor *x, int64_t i, int64_t begin) {
    if (!x->channels) return i - begin;
    int64_t inside = i % x->row, plane = x->row / x->channels;
    return i - inside + (inside % plane) * x->channels + inside / plane - begin;
}

/* A chunk in another order than its masks: the last, or one of a channels_last tensor. */
static void scatter_chunk(float *t, const float *s, const uint32_t *mask, int64_t i, int64_t begin, int64_t end,
                          const Tensor *x, const Rule *r) {
    int64_t plane = x->channels ? x->row / x->channels : 1, stride = x->channels ? x->channels : 1;
    for (int64_t stop = i + CHUNK < end ? i + CHUNK : end; i < stop;) {
        int64_t a = address(x, i, begin), run = x->channels ? plane - i % plane : stop - i; /* one stride apart */
        if (run > stop - i) run = stop - i;
        for (int64_t k = 0; k < run; k++, a += stride, mask++)
            if (*mask) t[a] = lerp(t[a], s[a], r);
        i += run;
    }
}

static void dense_tile(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    uint32_t mask[CHUNK] __attribute__((aligned(32)));
    for (int64_t i = begin; i < end; i += CHUNK) {
        chunk_masks(mask, (uint64_t)(i / CHUNK), x, r);
        if (!x->channels && i + CHUNK <= end)
            apply_chunk(t + i - begin, s + i - begin, mask, r);
        else
            scatter_chunk(t, s, mask, i, begin, end, x, r);
    }
}

static void sparse_tile(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    uint32_t words[4], position = (uint32_t)(begin / TILE * CALLS_PER_BLOCK);
    for (int64_t i = begin;;) {
        philox(position++, x->tags[TAG_GAP], r->step, r->seed, words);
        for (int w = 0; w < 4; w++) {
            uint32_t gap = r->guide[words[w] >> GUIDE_SHIFT];
            while (gap < NUM_GAPS && words[w] < r->gaps[gap]) gap++;
            i += gap;
            if (i >= end) return;
            if (gap == NUM_GAPS) continue;
            int64_t a = address(x, i++, begin);
            t[a] = lerp(t[a], s[a], r);
        }
    }
}

static void channel_tile(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    uint32_t words[4];
    int64_t drawn = -1;
    for (int64_t row = begin / x->row; row * x->row < end; row++) {
        if (row / 4 != drawn) philox((uint32_t)(drawn = row / 4), x->tags[TAG_CHANNEL], r->step, r->seed, words);
        if (words[row % 4] < r->threshold) continue;
        int64_t from = row * x->row > begin ? row * x->row : begin;
        int64_t to = (row + 1) * x->row < end ? (row + 1) * x->row : end;
        lerp_run(t + from - begin, s + from - begin, to - from, r);
    }
}

static void update_tile(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    switch (r->kind) {
    case LAYER: if (!unit_updated(x->tags[TAG_LAYER], r)) return; break;
    case MODULE: if (!unit_updated(x->tags[TAG_MODULE], r)) return; break;
    case CHANNEL: channel_tile(t, s, begin, end, x, r); return;
    case NEURON_DENSE: dense_tile(t, s, begin, end, x, r); return;
    case NEURON_SPARSE: sparse_tile(t, s, begin, end, x, r); return;
    }
    lerp_run(t, s, end - begin, r);
}

/* ---- students in 16 bits are widened tile by tile ---- */

static void widen(float *out, const void *in, int64_t n, int64_t type) {
    const uint16_t *bits = in;
    if (type == BFLOAT16) {
        for (int64_t i = 0; i < n; i++) ((uint32_t *)out)[i] = (uint32_t)bits[i] << 16;
    } else {
        for (int64_t i = 0; i < n; i++) { /* float16: exact, subnormals and NaN included */
            uint32_t sign = (uint32_t)(bits[i] & 0x8000) << 16, rest = bits[i] & 0x7FFF, value;
            float scaled;
            memcpy(&scaled, &(uint32_t){rest << 13}, 4);
            scaled *= 0x1p112f;
            memcpy(&value, &scaled, 4);
            if (rest >= 0x7C00) value = (rest << 13) | 0x7F800000;
            ((uint32_t *)out)[i] = value | sign;
        }
    }
}

/* Updates tiles [begin, end) of the concatenation of all tensors; first_tile has the number of tiles before each. */
void sts_update(const Tensor *tensors, const int64_t *first_tile, int64_t num_tensors, int64_t begin, int64_t end,
                const Rule *rules, int64_t num_teachers) {
    float buffer[TILE];
    int64_t k = 0;
    for (int64_t tile = begin; tile < end; tile++) {
        while (k + 1 < num_tensors && first_tile[k + 1] <= tile) k++;
        const Tensor *x = tensors + k;
        int64_t from = (tile - first_tile[k]) * TILE, to = from + TILE < x->numel ? from + TILE : x->numel;
        const float *s = buffer;
        if (x->student_type == FLOAT32)
            s = (const float *)x->student + from;
        else
            widen(buffer, (const uint16_t *)x->student + from, to - from, x->student_type);
        for (int64_t j = 0; j < num_teachers; j++) update_tile(x->teachers[j] + from, s, from, to, x, rules + j);
    }
}
