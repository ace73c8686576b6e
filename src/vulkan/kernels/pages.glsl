/* Pages of the cache. Page tables have addresses of the pool: granule of memory, then the offset in it. The granules lie
 * anywhere; a table has their addresses. 16 bytes at a multiple of 16 are in one granule. */
#define PAGE 64

uvec2 address_in_pool(uvec2 granules, uint shift, uvec2 at)
{
    const uint granule = at.x >> shift | at.y << 32 - shift;
    return advance(Addresses(granules).at[granule], 1, at.x & (1u << shift) - 1);
}
