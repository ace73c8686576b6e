/* The lock of a model: evaluations take turns, and a thread can tell whether it holds the lock. A thread that waits
 * holds `turn`: the next lock goes to it, not to the thread that has just unlocked. */
#include "engine/internal.h"

static _Thread_local char this_thread; /* its address is the thread's alone */

void qn_model_lock(qn_model *model)
{
    pthread_mutex_lock(&model->turn);
    pthread_mutex_lock(&model->lock);
    pthread_mutex_unlock(&model->turn);
    atomic_store(&model->holder, (uintptr_t)&this_thread);
}

bool qn_model_is_locked_here(const qn_model *model)
{
    return atomic_load(&model->holder) == (uintptr_t)&this_thread;
}

void qn_model_unlock(qn_model *model)
{
    atomic_store(&model->holder, 0);
    pthread_mutex_unlock(&model->lock);
}

bool qn_model_is_awaited(qn_model *model)
{
    if (pthread_mutex_trylock(&model->turn))
        return true;
    pthread_mutex_unlock(&model->turn);
    return false;
}
