/* The unit in which all devices divide a sequence's positions. */
#ifndef QN_PLAN_PAGE_H
#define QN_PLAN_PAGE_H

enum {
    QN_PAGE = 64,          /* positions of a page: of the pool, of prefixes, and of what attention reads at a time */
    QN_GDN_CHUNK = QN_PAGE /* rows of a chunk of the delta rule */
};

#endif
