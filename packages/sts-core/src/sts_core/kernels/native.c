/* The teacher update on a CPU: masks.py draw for draw, without a mask in memory.
 *
 * Tensors are cut into tiles of 16,384 weights. A tile is updated for all teachers before the next, so that a bank of
 * teachers reads the student once. Tiles are independent: any split over threads gives the same result.
 */
#include <stdint.h>
#include <string.h>
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__FMA__)
#define SIMD 512
#elif defined(__AVX2__) && defined(__FMA__)
#define SIMD 256
#else
#define SIMD 0
#endif
#if SIMD
#include <immintrin.h>
#endif
#define INLINE static inline __attribute__((always_inline))

enum { TILE = 16384, CHUNK = 128, LANES = 8, GROUP = CHUNK / 4, CALLS_PER_BLOCK = TILE / 4 };
enum { NUM_GAPS = 1024, GUIDE_SHIFT = 22 };
enum { LINE = 16, PIECE = 256 }; /* weights */
enum { BEYOND = 512 }; /* bits: what may be loaded from the last one on */
enum { QUEUE = 8, AHEAD = 4 }; /* pieces called for in advance: a power of two, and how many of them */
enum { ALL, LAYER, MODULE, CHANNEL, NEURON_DENSE, NEURON_SPARSE };
enum { FLOAT32, BFLOAT16, FLOAT16 };
enum { TAG_LAYER, TAG_MODULE, TAG_CHANNEL, TAG_NEURON, TAG_TIE, TAG_GAP, NUM_TAGS };

typedef struct {
    const void *student;
    float *const *teachers;
    int64_t numel, row; /* row: weights of one index of dim 0 */
    int64_t channels;   /* channels_last: size of dim 1, stored innermost; 0: row-major */
    int64_t student_type;
    int64_t run, distance, first; /* a block of a larger tensor: runs of this length, where they lie in the whole */
    int64_t first_row;            /* of the block in the whole */
    uint64_t tags[NUM_TAGS];
} Tensor;

typedef struct {
    uint64_t seed, threshold; /* threshold: p * 2^32 */
    uint32_t step, kind;
    float momentum, pull;     /* pull: 1 - m */
    uint32_t high[3], low[3]; /* 48-bit thresholds of a pair of weights: upper 16 and lower 32 bits */
    const uint64_t *gaps;     /* p^g * 2^32 for g = 1 .. NUM_GAPS */
    const uint32_t *guide;    /* smallest gap that a word with these upper 10 bits can mean */
} Rule;

/* ---- Philox4x32-10 ---- */

#define MULTIPLIER0 0xD2511F53u
#define MULTIPLIER1 0xCD9E8D57u
#define STEP0 0x9E3779B9u
#define STEP1 0xBB67AE85u

static void philox(uint32_t position, uint64_t tag, const Rule *r, uint32_t out[4]) {
    uint32_t c0 = position, c1 = (uint32_t)tag, c2 = (uint32_t)(tag >> 32), c3 = r->step;
    uint32_t k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)MULTIPLIER0 * c0, b = (uint64_t)MULTIPLIER1 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b, c3 = (uint32_t)a;
        k0 += STEP0, k1 += STEP1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Eight consecutive positions at once. A Stream holds what all calls of one tag share. */
#if SIMD

#if SIMD == 512
typedef __m512i Lanes; /* 64-bit lanes, of which the multiplication reads the lower half: upper halves may hold anything */
enum { PARTS = 1 };
#define ALL_LANES(x) _mm512_set1_epi64((long long)(x))
INLINE Lanes product(Lanes x, Lanes y) { return _mm512_mul_epu32(x, y); }
INLINE Lanes xor3(Lanes x, Lanes y, Lanes z) { return _mm512_ternarylogic_epi64(x, y, z, 0x96); }
INLINE Lanes upper(Lanes x) { return _mm512_srli_epi64(x, 32); }
INLINE Lanes positions(uint64_t first, int part) {
    return _mm512_add_epi64(ALL_LANES(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
#else
typedef __m256i Lanes;
enum { PARTS = 2 }; /* positions 0 1 4 5 and 2 3 6 7, which join() puts in order */
#define ALL_LANES(x) _mm256_set1_epi64x((long long)(x))
INLINE Lanes product(Lanes x, Lanes y) { return _mm256_mul_epu32(x, y); }
INLINE Lanes xor3(Lanes x, Lanes y, Lanes z) { return _mm256_xor_si256(x, _mm256_xor_si256(y, z)); }
INLINE Lanes upper(Lanes x) { return _mm256_srli_epi64(x, 32); }
INLINE Lanes positions(uint64_t first, int part) {
    return _mm256_add_epi64(ALL_LANES(first), part ? _mm256_setr_epi64x(2, 3, 6, 7) : _mm256_setr_epi64x(0, 1, 4, 5));
}
#endif

typedef struct {
    Lanes xors[4]; /* of the first three rounds, in which part of the counter is the same for all */
    Lanes key0[10], key1[10];
} Stream;

typedef struct { Lanes c[4]; } Counters;
typedef struct { Counters part[PARTS]; } Eight;

static Stream stream(uint64_t tag, const Rule *r) {
    Stream out;
    uint32_t k0[3], k1[3], key0 = (uint32_t)r->seed, key1 = (uint32_t)(r->seed >> 32);
    for (int i = 0; i < 10; i++, key0 += STEP0, key1 += STEP1) {
        if (i < 3) k0[i] = key0, k1[i] = key1;
        out.key0[i] = ALL_LANES(key0), out.key1[i] = ALL_LANES(key1);
    }
    uint64_t b = (uint64_t)MULTIPLIER1 * (uint32_t)(tag >> 32);
    uint64_t a = (uint64_t)MULTIPLIER0 * ((uint32_t)(b >> 32) ^ (uint32_t)tag ^ k0[0]);
    out.xors[0] = ALL_LANES(r->step ^ k1[0]);
    out.xors[1] = ALL_LANES((uint32_t)b ^ k0[1]);
    out.xors[2] = ALL_LANES((uint32_t)(a >> 32) ^ k1[1]);
    out.xors[3] = ALL_LANES((uint32_t)a ^ k1[2]);
    return out;
}

INLINE Lanes product0(Lanes x) { return product(x, ALL_LANES(MULTIPLIER0)); }
INLINE Lanes product1(Lanes x) { return product(x, ALL_LANES(MULTIPLIER1)); }

INLINE Counters three_rounds(Lanes position, const Stream *g) {
    const Lanes zero = ALL_LANES(0);
    Lanes a = product0(position), b = product1(xor3(upper(a), g->xors[0], zero));
    Lanes a3 = product0(xor3(upper(b), g->xors[1], zero)), b3 = product1(xor3(a, g->xors[2], zero));
    return (Counters){{xor3(upper(b3), b, g->key0[2]), b3, xor3(upper(a3), g->xors[3], zero), a3}};
}

INLINE Counters next_round(Counters x, int i, const Stream *g) {
    Lanes a = product0(x.c[0]), b = product1(x.c[2]);
    return (Counters){{xor3(upper(b), x.c[1], g->key0[i]), b, xor3(upper(a), x.c[3], g->key1[i]), a}};
}

INLINE Eight begin_8(uint64_t first, const Stream *g) {
    Eight out;
    for (int k = 0; k < PARTS; k++) out.part[k] = three_rounds(positions(first, k), g);
    return out;
}

INLINE Eight round_of_8(Eight x, int i, const Stream *g) {
    for (int k = 0; k < PARTS; k++) x.part[k] = next_round(x.part[k], i, g);
    return x;
}

#if SIMD == 512
INLINE __m256i join(Eight x, int w) { return _mm512_cvtepi64_epi32(x.part[0].c[w]); }
#else
INLINE __m256i join(Eight x, int w) {
    __m256 low = _mm256_castsi256_ps(x.part[0].c[w]), high = _mm256_castsi256_ps(x.part[1].c[w]);
    return _mm256_castps_si256(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
}
#endif

/* out[w] holds word w of all eight. */
INLINE void end_8(Eight x, __m256i out[4]) {
    for (int w = 0; w < 4; w++) out[w] = join(x, w);
}

INLINE void vectors_of_8(uint64_t first, const Stream *g, __m256i out[4]) {
    Eight x = begin_8(first, g);
    for (int i = 3; i < 10; i++) x = round_of_8(x, i, g);
    end_8(x, out);
}

INLINE void words_of_8(uint64_t first, const Stream *g, uint32_t out[4][LANES]) {
    __m256i words[4];
    vectors_of_8(first, g, words);
    for (int w = 0; w < 4; w++) _mm256_storeu_si256((__m256i *)out[w], words[w]);
}

#else

typedef struct { uint64_t tag; const Rule *rule; } Stream;

static Stream stream(uint64_t tag, const Rule *r) { return (Stream){tag, r}; }

INLINE void words_of_8(uint64_t first, const Stream *g, uint32_t out[4][LANES]) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t words[4];
        philox((uint32_t)(first + lane), g->tag, g->rule, words);
        for (int w = 0; w < 4; w++) out[w][lane] = words[w];
    }
}

#endif

/* ---- memory that the processor's own prefetching does not see coming ---- */

INLINE void call_for(const float *x) { __builtin_prefetch(x, 0, 3); }

INLINE void call_for_piece(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += LINE) call_for(x + i);
}

/* ---- the moving average; it differs from torch's lerp by at most one rounding ---- */

INLINE float lerp(float t, float s, const Rule *r) {
    if (r->momentum == 0.0f) return s;
    return r->pull < 0.5f ? __builtin_fmaf(r->pull, s - t, t) : __builtin_fmaf(-r->momentum, s - t, s);
}

static void lerp_run(float *restrict t, const float *restrict s, int64_t n, const Rule *r) {
    const float pull = r->pull, keep = -r->momentum;
    if (r->momentum == 0.0f) {
        memcpy(t, s, (size_t)n * sizeof *t);
    } else if (pull < 0.5f) {
        for (int64_t i = 0; i < n; i++) t[i] = __builtin_fmaf(pull, s[i] - t[i], t[i]);
    } else {
        for (int64_t i = 0; i < n; i++) t[i] = __builtin_fmaf(keep, s[i] - t[i], s[i]);
    }
}

/* ---- updates here and there: memory is called for, and used when some more has been called for ---- */

typedef struct { float *t; const float *s; int64_t n; const Rule *r; } Piece;
typedef struct { float *t; const float *s; const Rule *r; uint32_t count; int32_t places[TILE]; } Chosen; /* single weights */
typedef struct {
    Piece pieces[QUEUE];
    uint32_t begun, done;
    Chosen chosen[2]; /* of this tile and of the one before */
    int turn;
} Queue;

/* Updates the oldest pieces until `rest` are under way. */
INLINE void finish_pieces(Queue *q, uint32_t rest) {
    for (; q->begun - q->done > rest; q->done++) {
        const Piece *x = &q->pieces[q->done % QUEUE];
        lerp_run(x->t, x->s, x->n, x->r);
    }
}

INLINE void begin_piece(Queue *q, float *t, const float *s, int64_t n, const Rule *r) {
    for (int64_t i = 0; i < n; i += LINE) __builtin_prefetch(t + i, 1, 3), call_for(s + i); /* t is written to */
    q->pieces[q->begun++ % QUEUE] = (Piece){t, s, n, r};
    finish_pieces(q, AHEAD);
}

static void finish_chosen(Chosen *x) {
    for (uint32_t k = 0; k < x->count; k++) {
        int64_t a = x->places[k];
        x->t[a] = lerp(x->t[a], x->s[a], x->r);
    }
    x->count = 0;
}

static void finish(Queue *q) {
    finish_pieces(q, 0);
    finish_chosen(&q->chosen[0]), finish_chosen(&q->chosen[1]);
}

/* ---- one tile of one teacher; t and s point to the tile, begin and end are its row-major range in the tensor ---- */

/* Where the weight with this row-major index lies, counted from the tile's first. */
INLINE int64_t address(const Tensor *x, int64_t i, int64_t begin) {
    if (!x->channels) return i - begin;
    int64_t inside = i % x->row, plane = x->row / x->channels;
    return i - inside + (inside % plane) * x->channels + inside / plane - begin;
}

INLINE int is_set(const uint32_t *bits, int64_t i) { return bits[i / 32] >> (i % 32) & 1; }

/* Neuron, dense: the masks of the 32 weights that word w of a chunk decides, 0xFF where updated. */
static void group_masks(uint8_t mask[GROUP], const uint32_t words[LANES], uint64_t chunk, int w, const Tensor *x,
                        const Rule *r) {
    for (int half = 0; half < 2; half++)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t bits = (words[lane] >> (16 * half)) & 0xFFFF, extra[4] = {0}, ge[3];
            if (bits == r->high[0] || bits == r->high[1] || bits == r->high[2])
                philox((uint32_t)(2 * (chunk * LANES + lane) + half), x->tags[TAG_TIE], r, extra);
            for (int k = 0; k < 3; k++)
                ge[k] = bits > r->high[k] || (bits == r->high[k] && extra[w] >= r->low[k]);
            mask[16 * half + lane] = (uint8_t)-ge[1];
            mask[16 * half + LANES + lane] = (uint8_t)-(ge[0] ^ ge[1] ^ ge[2]);
        }
}

#if SIMD

enum { COPY, NEAR, FAR }; /* which form of the moving average */

INLINE void apply8(float *t, const float *s, __m256i mask, __m256 factor, int form) {
    __m256 old = _mm256_loadu_ps(t), new = _mm256_loadu_ps(s);
    if (form == NEAR) new = _mm256_fmadd_ps(factor, _mm256_sub_ps(new, old), old);
    if (form == FAR) new = _mm256_fmadd_ps(factor, _mm256_sub_ps(new, old), new);
    _mm256_storeu_ps(t, _mm256_blendv_ps(old, new, _mm256_castsi256_ps(mask))); /* the lanes' sign bits choose */
}

#if SIMD == 512

INLINE void apply16(float *t, const float *s, __mmask16 mask, __m512 factor, int form) {
    __m512 old = _mm512_loadu_ps(t), new = _mm512_loadu_ps(s);
    if (form == COPY) new = _mm512_mask_mov_ps(old, mask, new);
    if (form == NEAR) new = _mm512_mask3_fmadd_ps(factor, _mm512_sub_ps(new, old), old, mask);
    if (form == FAR) new = _mm512_mask_mov_ps(old, mask, _mm512_fmadd_ps(factor, _mm512_sub_ps(new, old), new));
    _mm512_storeu_ps(t, new);
}

/* A chunk's masks: a bit for each weight, 32 for each word. */
typedef struct { __mmask32 of[4]; } Masks;

static __attribute__((noinline)) void break_ties(Masks *out, Eight drawn, uint64_t chunk, const Tensor *x, const Rule *r) {
    for (int w = 0; w < 4; w++) {
        uint32_t stored[LANES];
        uint8_t mask[GROUP];
        _mm256_storeu_si256((__m256i *)stored, join(drawn, w));
        group_masks(mask, stored, chunk, w, x, r);
        out->of[w] = _mm256_movepi8_mask(_mm256_loadu_si256((__m256i *)mask));
    }
}

/* The 16 bits of every pair in its two weights' places. */
INLINE __m512i in_places(Lanes word) {
    const __m512i lower = _mm512_set_epi16(29, 25, 21, 17, 13, 9, 5, 1, 29, 25, 21, 17, 13, 9, 5, 1,
                                           28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    return _mm512_permutexvar_epi16(lower, word);
}

/* Thresholds for the first and the second weights of pairs, eight and eight. */
INLINE __m512i alternating(uint32_t first, uint32_t second) {
    return _mm512_mask_blend_epi16(0xFF00FF00, _mm512_set1_epi16((short)first), _mm512_set1_epi16((short)second));
}

INLINE __mmask32 equal(__m512i bits, const Rule *r) {
    __mmask32 out = 0;
    for (int k = 0; k < 3; k++) out |= _mm512_cmpeq_epi16_mask(bits, _mm512_set1_epi16((short)r->high[k]));
    return out;
}

/* Two words of all eight positions side by side. */
INLINE __m512i beside(Lanes x, Lanes y) { return _mm512_mask_blend_epi32(0xAAAA, x, _mm512_slli_epi64(y, 32)); }

INLINE Masks outcomes(Eight drawn, uint64_t chunk, const Tensor *x, const Rule *r) {
    const __m512i a = alternating(r->high[1], r->high[0]), b = _mm512_set1_epi16((short)r->high[1]),
                  c = alternating(r->high[1], r->high[2]);
    const Lanes *words = drawn.part[0].c;
    Masks out;
    for (int w = 0; w < 4; w++) {
        __m512i bits = in_places(words[w]);
        out.of[w] = _mm512_cmpgt_epu16_mask(bits, a) ^ _mm512_cmpgt_epu16_mask(bits, b) ^ _mm512_cmpgt_epu16_mask(bits, c);
    }
    __mmask32 tied = equal(beside(words[0], words[1]), r) | equal(beside(words[2], words[3]), r);
    if (__builtin_expect(tied != 0, 0)) break_ties(&out, drawn, chunk, x, r);
    return out;
}

INLINE void apply_word(float *t, const float *s, const Masks *m, int w, const Rule *r, int form) {
    const __m512 factor = _mm512_set1_ps(form == NEAR ? r->pull : -r->momentum);
    apply16(t, s, (__mmask16)m->of[w], factor, form);
    apply16(t + 16, s + 16, (__mmask16)(m->of[w] >> 16), factor, form);
}

INLINE uint32_t bits_of(const Masks *m, int w) { return m->of[w]; }

/* For a vector of weights whose masks are bits at equal distances: the words that hold them, and where in the words. */
enum { WIDTH = 16, NEAR_BITS = 32 }; /* up to this distance one load holds them all */
typedef struct { __m512i word, bit; } Places;

INLINE Places places(int first, int stride) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i place = _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride)));
    return (Places){_mm512_srli_epi32(place, 5), _mm512_rolv_epi32(_mm512_set1_epi32(1), place)};
}

INLINE __m512i permuted(const uint8_t *from, const Places *p) {
    return _mm512_permutexvar_epi32(p->word, _mm512_loadu_si512(from));
}

INLINE __m512i gathered(const uint8_t *from, const Places *p) { return _mm512_i32gather_epi32(p->word, from, 4); }

INLINE void apply_bits(float *t, const float *s, __m512i words, const Places *p, const Rule *r, int form) {
    const __m512 factor = _mm512_set1_ps(form == NEAR ? r->pull : -r->momentum);
    apply16(t, s, _mm512_test_epi32_mask(words, p->bit), factor, form);
}

#else

/* A chunk's masks, for each word: 16-bit lanes for the first and the second weight of its pairs, all ones where updated. */
typedef struct { __m256i first[4], second[4]; } Masks;

static __attribute__((noinline)) void break_ties(Masks *out, const __m256i words[4], uint64_t chunk, const Tensor *x,
                                                 const Rule *r) {
    for (int w = 0; w < 4; w++) {
        uint32_t stored[LANES];
        uint8_t mask[GROUP];
        int16_t member[2][2 * LANES];
        _mm256_storeu_si256((__m256i *)stored, words[w]);
        group_masks(mask, stored, chunk, w, x, r);
        for (int k = 0; k < GROUP; k++) member[k / LANES % 2][2 * (k % LANES) + k / (2 * LANES)] = (int8_t)mask[k];
        out->first[w] = _mm256_loadu_si256((__m256i *)member[0]);
        out->second[w] = _mm256_loadu_si256((__m256i *)member[1]);
    }
}

/* Unsigned comparison by signed instructions: both sides have their uppermost bit flipped. */
INLINE __m256i flipped(__m256i bits) { return _mm256_xor_si256(bits, _mm256_set1_epi16((short)0x8000)); }

INLINE Masks outcomes(Eight drawn, uint64_t chunk, const Tensor *x, const Rule *r) {
    __m256i words[4], high[3], tied = _mm256_setzero_si256();
    Masks out;
    end_8(drawn, words);
    for (int k = 0; k < 3; k++) high[k] = _mm256_set1_epi16((short)(r->high[k] ^ 0x8000));
    for (int w = 0; w < 4; w++) {
        __m256i bits = flipped(words[w]), above[3];
        for (int k = 0; k < 3; k++) {
            above[k] = _mm256_cmpgt_epi16(bits, high[k]);
            tied = _mm256_or_si256(tied, _mm256_cmpeq_epi16(bits, high[k]));
        }
        out.first[w] = above[1], out.second[w] = _mm256_xor_si256(_mm256_xor_si256(above[0], above[1]), above[2]);
    }
    if (__builtin_expect(!_mm256_testz_si256(tied, tied), 0)) break_ties(&out, words, chunk, x, r);
    return out;
}

INLINE void apply_word(float *t, const float *s, const Masks *m, int w, const Rule *r, int form) {
    const __m256 factor = _mm256_set1_ps(form == NEAR ? r->pull : -r->momentum);
    apply8(t, s, _mm256_slli_epi32(m->first[w], 16), factor, form);
    apply8(t + 8, s + 8, _mm256_slli_epi32(m->second[w], 16), factor, form);
    apply8(t + 16, s + 16, m->first[w], factor, form);
    apply8(t + 24, s + 24, m->second[w], factor, form);
}

/* One word's masks in row-major order, a bit each. */
INLINE uint32_t bits_of(const Masks *m, int w) {
    const __m256i apart = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)); /* a pair's halves of 16 bits */
    __m256i bytes = _mm256_shuffle_epi8(_mm256_packs_epi16(m->first[w], m->second[w]), apart);
    return (uint32_t)_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

/* For a vector of weights whose masks are bits at equal distances: the words that hold them, and shifts to the upper end. */
enum { WIDTH = 8, NEAR_BITS = 32 }; /* up to this distance one load holds them all */
typedef struct { __m256i word, shift; } Places;

INLINE Places places(int first, int stride) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i place = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_mullo_epi32(lanes, _mm256_set1_epi32(stride)));
    return (Places){_mm256_srli_epi32(place, 5), _mm256_andnot_si256(place, _mm256_set1_epi32(31))};
}

INLINE __m256i permuted(const uint8_t *from, const Places *p) {
    return _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)from), p->word);
}

INLINE __m256i gathered(const uint8_t *from, const Places *p) {
    return _mm256_i32gather_epi32((const int *)from, p->word, 4);
}

INLINE void apply_bits(float *t, const float *s, __m256i words, const Places *p, const Rule *r, int form) {
    const __m256 factor = _mm256_set1_ps(form == NEAR ? r->pull : -r->momentum);
    apply8(t, s, _mm256_sllv_epi32(words, p->shift), factor, form);
}

#endif

INLINE Masks masks_of(uint64_t chunk, const Stream *g, const Tensor *x, const Rule *r) {
    Eight drawn = begin_8(chunk * LANES, g);
    for (int i = 3; i < 10; i++) drawn = round_of_8(drawn, i, g);
    return outcomes(drawn, chunk, x, r);
}

/* Whole chunks of row-major weights: while one is updated the next one's masks are drawn, which keeps both the
 * arithmetic units and the memory busy. */
INLINE void dense_run(float *t, const float *s, int64_t begin, int64_t n, const Tensor *x, const Rule *r, int form) {
    const Stream g = stream(x->tags[TAG_NEURON], r);
    Masks masks = masks_of((uint64_t)begin / CHUNK, &g, x, r);
    for (int64_t i = 0; i < n; i += CHUNK) {
        uint64_t next = (uint64_t)(begin + i) / CHUNK + 1;
        Eight drawn = begin_8(next * LANES, &g);
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) {
            drawn = round_of_8(drawn, 3 + w, &g);
            apply_word(t + i + GROUP * w, s + i + GROUP * w, &masks, w, r, form);
        }
        for (int k = 7; k < 10; k++) drawn = round_of_8(drawn, k, &g);
        masks = outcomes(drawn, next, x, r);
    }
}

/* The masks of a chunk in row-major order, a bit each. */
static void chunk_masks(uint32_t bits[4], uint64_t chunk, const Stream *g, const Tensor *x, const Rule *r) {
    Masks m = masks_of(chunk, g, x, r);
    for (int w = 0; w < 4; w++) bits[w] = bits_of(&m, w);
}

/* Weights that lie together, of which masks are `stride` bits apart, the first at bit `first`. */
INLINE void masked_run(float *t, const float *s, const uint32_t *bits, int64_t first, int64_t stride, int64_t n,
                       const Rule *r, int form) {
    const uint8_t *from = (const uint8_t *)bits + first / 8;
    const Places p = places((int)(first % 8), (int)stride);
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH, from += WIDTH / 8 * stride)
        apply_bits(t + i, s + i, stride > NEAR_BITS ? gathered(from, &p) : permuted(from, &p), &p, r, form);
    for (; i < n; i++) t[i] = is_set(bits, first + i * stride) ? lerp(t[i], s[i], r) : t[i];
}

static void apply_masks(float *t, const float *s, const uint32_t *bits, int64_t first, int64_t stride, int64_t n,
                        const Rule *r) {
    if (r->momentum == 0.0f) masked_run(t, s, bits, first, stride, n, r, COPY);
    else if (r->pull < 0.5f) masked_run(t, s, bits, first, stride, n, r, NEAR);
    else masked_run(t, s, bits, first, stride, n, r, FAR);
}

static int64_t dense_whole(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    int64_t whole = (end - begin) / CHUNK * CHUNK;
    if (r->momentum == 0.0f) dense_run(t, s, begin, whole, x, r, COPY);
    else if (r->pull < 0.5f) dense_run(t, s, begin, whole, x, r, NEAR);
    else dense_run(t, s, begin, whole, x, r, FAR);
    return whole;
}

#else

static void chunk_masks(uint32_t bits[4], uint64_t chunk, const Stream *g, const Tensor *x, const Rule *r) {
    uint32_t words[4][LANES];
    uint8_t mask[GROUP];
    words_of_8(chunk * LANES, g, words);
    for (int w = 0; w < 4; w++) {
        group_masks(mask, words[w], chunk, w, x, r);
        bits[w] = 0;
        for (int k = 0; k < GROUP; k++) bits[w] |= (uint32_t)(mask[k] & 1) << k;
    }
}

static void apply_masks(float *t, const float *s, const uint32_t *bits, int64_t first, int64_t stride, int64_t n,
                        const Rule *r) {
    for (int64_t i = 0; i < n; i++) t[i] = is_set(bits, first + i * stride) ? lerp(t[i], s[i], r) : t[i];
}

static int64_t dense_whole(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    return 0;
}

#endif

/* ---- channels_last: masks are drawn in row-major order [channel, place], weights of a row lie as [place, channel] ---- */

typedef struct { int64_t origin, drawn; uint32_t bits[(2 * TILE + 2 * CHUNK + BEYOND) / 32]; } Drawn;

/* Draws the bits up to `upto`, and calls for the memory of as many weights. */
static void draw_bits(Drawn *d, const float *t, const float *s, int64_t upto, const Stream *g, const Tensor *x,
                      const Rule *r) {
    for (; d->drawn < upto; d->drawn += CHUNK) {
        int64_t i = d->drawn - d->origin;
        call_for_piece(t + i, CHUNK), call_for_piece(s + i, CHUNK);
        chunk_masks(d->bits + i / 32, (uint64_t)(d->drawn / CHUNK), g, x, r);
    }
}

/* A whole row of at most eight channels: the bits of eight places at once are put into the order of the weights. */
static void apply_few_channels(float *t, const float *s, const uint32_t *bits, int64_t first, const Tensor *x,
                               const Rule *r) {
    uint32_t turned[(TILE + BEYOND) / 32];
    int64_t plane = x->row / x->channels;
    for (int64_t place = 0; place < plane; place += 8) {
        uint64_t joined = 0;
        for (int64_t c = 0; c < x->channels; c++)
            for (int64_t k = 0; k < 8; k++)
                joined |= (uint64_t)is_set(bits, first + c * plane + place + k) << (k * x->channels + c);
        memcpy((uint8_t *)turned + place / 8 * x->channels, &joined, sizeof joined); /* the next one covers the excess */
    }
    apply_masks(t, s, turned, 0, 1, x->row, r);
}

/* Bits are drawn one row ahead of those that are applied, which keeps both the arithmetic units and the memory busy. A
 * tile serves the whole rows that begin in it, since parts of a row lie scattered; of longer rows, its part. */
static void dense_transposed(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    const Stream g = stream(x->tags[TAG_NEURON], r);
    const int64_t length = x->row, plane = length / x->channels, tile = begin;
    const int is_whole = length <= TILE;
    Drawn d;
    if (is_whole) begin = (begin + length - 1) / length * length, end = (end + length - 1) / length * length;
    d.origin = d.drawn = begin / CHUNK * CHUNK;
    t += d.origin - tile, s += d.origin - tile;
    int64_t ahead = begin + length;
    for (int64_t row = begin / length * length; row < end; row += length) {
        int64_t a = row - d.origin, from = row > begin ? 0 : begin - row, to = end - row < length ? end - row : length;
        if (is_whole && x->channels <= 8) {
            draw_bits(&d, t, s, row + length, &g, x, r);
            apply_few_channels(t + a, s + a, d.bits, a, x, r);
            continue;
        }
        for (int64_t place = 0; place < plane; place++) {
            int64_t c0 = (from - place + plane - 1) / plane, c1 = (to - place + plane - 1) / plane;
            int64_t i = a + place * x->channels + c0;
            draw_bits(&d, t, s, ahead < end ? ahead : end, &g, x, r);
            apply_masks(t + i, s + i, d.bits, a + c0 * plane + place, plane, c1 - c0, r);
            ahead += c1 - c0;
        }
    }
}

static void dense_tile(float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    uint32_t bits[(CHUNK + BEYOND) / 32];
    const Stream g = stream(x->tags[TAG_NEURON], r);
    int64_t behind = begin % CHUNK; /* a block may begin inside a chunk */
    if (behind) {
        int64_t n = CHUNK - behind < end - begin ? CHUNK - behind : end - begin;
        chunk_masks(bits, (uint64_t)(begin / CHUNK), &g, x, r);
        apply_masks(t, s, bits, behind, 1, n, r);
        t += n, s += n, begin += n;
    }
    for (int64_t i = dense_whole(t, s, begin, end, x, r); i < end - begin; i += CHUNK) {
        chunk_masks(bits, (uint64_t)((begin + i) / CHUNK), &g, x, r);
        apply_masks(t + i, s + i, bits, 0, 1, end - begin - i < CHUNK ? end - begin - i : CHUNK, r);
    }
}

/* Neuron, sparse: draw all updated weights of the tile and call for their memory, then update those of the tile before. */
static void sparse_tile(Queue *q, float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    uint32_t behind = (uint32_t)(begin % TILE); /* a block may begin inside a tile, whose draws begin at its start */
    uint32_t words[4][LANES], count = 0, i = 0, n = behind + (uint32_t)(end - begin);
    Chosen *mine = &q->chosen[q->turn ^= 1];
    const int scattered = x->channels != 0;
    uint64_t position = (uint64_t)(begin / TILE) * CALLS_PER_BLOCK;
    const Stream g = stream(x->tags[TAG_GAP], r);
    for (;; position += LANES) {
        words_of_8(position, &g, words);
        for (int k = 0; k < 4 * LANES; k++) {
            uint32_t word = words[k % 4][k / 4], gap = r->guide[word >> GUIDE_SHIFT];
            while (gap < NUM_GAPS && word < r->gaps[gap]) gap++;
            i += gap;
            if (i >= n) goto drawn;
            if (gap == NUM_GAPS) continue;
            if (i++ < behind) continue;
            int64_t a = scattered ? address(x, begin + i - 1, begin) : i - 1 - behind;
            mine->places[count++] = (int32_t)a;
            call_for(t + a), call_for(s + a);
        }
    }
drawn:
    mine->t = t, mine->s = s, mine->r = r, mine->count = count;
    finish_chosen(&q->chosen[q->turn ^ 1]);
}

/* Which of the 32 rows that eight positions decide are updated: bit k for the group's row k. */
#if SIMD

INLINE uint32_t rows_updated(uint64_t group, const Stream *g, const Rule *r) {
    const __m256i threshold = _mm256_set1_epi32((int)(uint32_t)r->threshold);
    __m256i words[4];
    uint32_t bits = 0;
    if (r->threshold >> 32) return 0; /* p so near to 1 that no word reaches it */
    vectors_of_8(group * LANES, g, words);
    for (int w = 0; w < 4; w++) {
        __m256i reached = _mm256_cmpeq_epi32(_mm256_max_epu32(words[w], threshold), words[w]);
        bits |= _pdep_u32((uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(reached)), 0x11111111u << w);
    }
    return bits;
}

#else

INLINE uint32_t rows_updated(uint64_t group, const Stream *g, const Rule *r) {
    uint32_t words[4][LANES], bits = 0;
    words_of_8(group * LANES, g, words);
    for (int k = 0; k < GROUP; k++) bits |= (uint32_t)(words[k % 4][k / 4] >= r->threshold) << k;
    return bits;
}

#endif

INLINE void begin_rows(Queue *q, float *t, const float *s, int64_t n, const Rule *r) {
    for (int64_t i = 0; i < n; i += PIECE) begin_piece(q, t + i, s + i, n - i < PIECE ? n - i : PIECE, r);
}

/* The updated rows inside the tile; small ones that follow each other are one piece. */
static void channel_tile(Queue *q, float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    const Stream g = stream(x->tags[TAG_CHANNEL], r);
    int64_t held = begin, upto = begin;
    for (int64_t group = begin / x->row / GROUP; group * GROUP * x->row < end; group++) {
        for (uint32_t bits = rows_updated((uint64_t)group, &g, r); bits; bits &= bits - 1) {
            int64_t row = group * GROUP + __builtin_ctz(bits), from = row * x->row, to = from + x->row;
            if (to <= begin) continue;
            if (from >= end) break;
            from = from > begin ? from : begin, to = to < end ? to : end;
            if (from > upto || to - held > PIECE) {
                begin_rows(q, t + held - begin, s + held - begin, upto - held, r);
                held = from;
            }
            upto = to;
        }
    }
    begin_rows(q, t + held - begin, s + held - begin, upto - held, r);
}

INLINE int unit_updated(uint64_t tag, const Rule *r) {
    uint32_t words[4];
    philox(0, tag, r, words);
    return words[0] >= r->threshold;
}

/* All weights of a tile. In a bank the student is in the cache, and a single stream from memory needs help. */
static void whole_tile(float *t, const float *s, int64_t n, const Rule *r, int bank) {
    enum { STEP = 32 * LINE, ADVANCE = 2048 };
    if (!bank) {
        lerp_run(t, s, n, r);
        return;
    }
    for (int64_t i = 0; i < n; i += STEP) {
        call_for_piece(t + i + ADVANCE, STEP);
        lerp_run(t + i, s + i, n - i < STEP ? n - i : STEP, r);
    }
}

/* Single weights, in stretches that lie together in the whole tensor and in one of its tiles; mostly there is one. */
static void neuron_tile(Queue *q, float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r) {
    while (begin < end) {
        int64_t inside = begin % x->run, place = begin / x->run * x->distance + inside + x->first, n = end - begin;
        if (n > x->run - inside) n = x->run - inside;
        if (n > TILE - place % TILE) n = TILE - place % TILE;
        if (r->kind == NEURON_DENSE && x->channels) dense_transposed(t, s, place, place + n, x, r);
        else if (r->kind == NEURON_DENSE) dense_tile(t, s, place, place + n, x, r);
        else sparse_tile(q, t, s, place, place + n, x, r);
        t += n, s += n, begin += n;
    }
}

static void update_tile(Queue *q, float *t, const float *s, int64_t begin, int64_t end, const Tensor *x, const Rule *r,
                        int bank) {
    switch (r->kind) {
    case LAYER: if (!unit_updated(x->tags[TAG_LAYER], r)) return; break;
    case MODULE: if (!unit_updated(x->tags[TAG_MODULE], r)) return; break;
    case CHANNEL: channel_tile(q, t, s, begin + x->first_row * x->row, end + x->first_row * x->row, x, r); return;
    case NEURON_DENSE:
    case NEURON_SPARSE: neuron_tile(q, t, s, begin, end, x, r); return;
    }
    whole_tile(t, s, end - begin, r, bank);
}

/* ---- students in 16 bits are widened tile by tile ---- */

static void widen(float *out, const void *in, int64_t n, int64_t type) {
    const uint16_t *bits = in;
    for (int64_t i = 0; i < n; i++) {
        uint32_t value = (uint32_t)bits[i] << 16; /* bfloat16 */
        if (type == FLOAT16) { /* exact, subnormals, infinities and NaN included */
            uint32_t rest = bits[i] & 0x7FFF, shifted = rest << 13;
            float scaled;
            memcpy(&scaled, &shifted, 4);
            scaled *= 0x1p112f;
            memcpy(&value, &scaled, 4);
            if (rest >= 0x7C00) value = shifted | 0x7F800000;
            value |= (uint32_t)(bits[i] & 0x8000) << 16;
        }
        memcpy(out + i, &value, 4);
    }
}

/* Updates tiles [begin, end) of the concatenation of all tensors; first_tile has the number of tiles before each. */
void sts_update(const Tensor *tensors, const int64_t *first_tile, int64_t num_tensors, int64_t begin, int64_t end,
                const Rule *rules, int64_t num_teachers) {
    float buffer[TILE];
    Queue queue;
    queue.begun = queue.done = queue.chosen[0].count = queue.chosen[1].count = queue.turn = 0;
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
        for (int64_t j = 0; j < num_teachers; j++)
            update_tile(&queue, x->teachers[j] + from, s, from, to, x, rules + j, num_teachers > 1);
        if (s == buffer) finish(&queue);
    }
    finish(&queue);
}

/* Calls for cache lines that others are about to read. No address is wrong: where there is no memory nothing happens. */
void sts_call_for(const uintptr_t *lines, int64_t num_lines) {
    for (int64_t i = 0; i < num_lines; i++) __builtin_prefetch((const void *)lines[i], 0, 3);
}
