/* Compares the contract with the layouts, values and types that its frozen versions promise. Every
 * comparison is a static assertion. The test passes if this file compiles as C11 and as C++17. */
#include "yoke/parallel_backend.h"

#ifdef __cplusplus
#include <type_traits>
#define HOLDS(condition, text) static_assert(condition, text);
#define FIELD_TYPE(Struct, field) decltype(Struct::field)
#define TYPE_OF(name) decltype(name)
#define SAME(A, ...) std::is_same<A, __VA_ARGS__>::value
#else
#define HOLDS(condition, text) _Static_assert(condition, text);
#define FIELD_TYPE(Struct, field) __typeof__(((Struct*)0)->field)
#define TYPE_OF(name) __typeof__(name)
#define SAME(A, ...) __builtin_types_compatible_p(A, __VA_ARGS__)
#endif

#define FROZEN_STRUCT(Struct, size) HOLDS(sizeof(Struct) == size, "size of " #Struct)
/* The size of a struct that may grow: later minor versions may have appended fields. */
#define GROWING_STRUCT(Struct, size) HOLDS(sizeof(Struct) >= size, "size of " #Struct)
#define FROZEN_FIELD(Struct, field, offset, size, ...)                      \
  HOLDS(offsetof(Struct, field) == offset, "offset of " #Struct "." #field) \
  HOLDS(sizeof(((Struct*)0)->field) == size, "size of " #Struct "." #field) \
  HOLDS(SAME(FIELD_TYPE(Struct, field), __VA_ARGS__), "type of " #Struct "." #field)
#define FROZEN_VALUE(name, value) HOLDS(name == value, "value of " #name)
#define FROZEN_TYPE(name, ...) HOLDS(SAME(name, __VA_ARGS__), "type " #name)
#define FROZEN_FUNCTION(name, ...) HOLDS(SAME(TYPE_OF(&name), __VA_ARGS__), "type of " #name)

#include "v1.0/frozen.inc"
#include "v1.1/frozen.inc"

HOLDS(__builtin_strcmp(YOKE_ENTRY_SYMBOL, "parallel_backend_entry_v1") == 0, "YOKE_ENTRY_SYMBOL")
