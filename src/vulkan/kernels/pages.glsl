/* Pages of the cache. Page tables have addresses of the pool: granule of memory, then the offset in it. The granules lie
 * anywhere; a table has their addresses. 16 bytes at a multiple of 16 are in one granule. */
#define PAGE 64

uint granule_of(uint shift, uvec2 at)
{
    return at.x >> shift | at.y << 32 - shift;
}

uvec2 address_in_pool(uvec2 granules, uint shift, uvec2 at)
{
    return advance(Addresses(granules).at[granule_of(shift, at)], 1, at.x & (1u << shift) - 1);
}

uvec2 add_bytes(uvec2 address, uint bytes)
{
    uint carry;
    const uint low = uaddCarry(address.x, bytes, carry);
    return uvec2(low, address.y + carry);
}

/* An array in an item, which lies in one granule or two: bytes from `limit` on are at `second` plus their offset. */
struct Place {
    uvec2 first, second;
    uint limit;
};

/* bytes: at most those of a granule. */
Place place_of(uvec2 granules, uint shift, uvec2 at, uint bytes)
{
    const uint granule = granule_of(shift, at), before = at.x & (1u << shift) - 1, limit = (1u << shift) - before;
    const uvec2 first = add_bytes(Addresses(granules).at[granule], before);
    if (bytes <= limit)
        return Place(first, first, bytes);
    const uvec2 next = Addresses(granules).at[granule + 1];
    uint borrow;
    const uint low = usubBorrow(next.x, limit, borrow);
    return Place(first, uvec2(low, next.y - borrow), limit);
}

uvec2 address_at(Place p, uint offset)
{
    return add_bytes(offset < p.limit ? p.first : p.second, offset);
}
