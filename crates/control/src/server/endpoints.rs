//! A notation for handlers: method, path, operation, arguments, status and type of the answer.
//!
//! ```text
//! /// Change a segment
//! delete "/v1/segments/{name}" => remove_segment(request: Change, name: Name) -> 204 {
//!     ...
//! }
//! ```
//!
//! An argument is an extractor, and its part of the API's document:
//!
//! | argument | is | is documented as |
//! |---|---|---|
//! | `Engine` | `EngineHandle` | |
//! | `Client` | `EngineHandle` on behalf of the client | |
//! | `Change` | `ChangeRequest` | `ChangeOptions`, `IfMatch` |
//! | `Name` | `String`, the name in the path | `NamePath` |
//! | `Path<T>` | `T`, the names in the path | parameters `T` |
//! | `Query<T>` | `T`, the query | parameters `T` |
//! | `Body<T>` | `T`, the body | body `T` |
//! | `Body<T, MAX>` | likewise, of at most `MAX` bytes instead of `BODY_MAX` | body `T` |
//! | `Number` | `u32`, the number in the path | parameter `number` |
//! | `Headers` | `HeaderMap` | |
//! | `Headers<T>` | `HeaderMap` | parameters `T` |
//!
//! An answer is its status and its type, or everything that `responses` of `utoipa::path` takes.

/// Defines handlers, `routes` with their router, and `Operations` with their descriptions.
macro_rules! endpoints {
    ($(
        $(#[$doc:meta])*
        $method:ident $path:literal => $name:ident $arguments:tt
            -> $answer:tt $($type:ident)? $do:block
    )*) => {
        /// Returns the router of these handlers.
        pub(in crate::server) fn routes() -> axum::Router<$crate::command::EngineHandle> {
            axum::Router::new()$(.route($path, axum::routing::$method($name)))*
        }

        /// The descriptions of these handlers.
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($name),*))]
        pub(in crate::server) struct Operations;

        $(endpoint! { $arguments [] [] [] {
            $(#[$doc])* $method $path $name [$answer $($type)?] $do
        } })*
    };
}

/// Defines one handler: takes argument by argument, then writes the function.
macro_rules! endpoint {
    (($arg:ident: Engine $(, $($rest:tt)*)?) [$($args:tt)*] $($of:tt)*) => {
        endpoint! { ($($($rest)*)?) [$($args)* State($arg): State<EngineHandle>,] $($of)* }
    };
    (($arg:ident: Client $(, $($rest:tt)*)?) [$($args:tt)*] $($of:tt)*) => {
        endpoint! { ($($($rest)*)?) [$($args)* Client($arg): Client,] $($of)* }
    };
    (($arg:ident: Change $(, $($rest:tt)*)?) [$($args:tt)*] [$($params:tt)*] $($of:tt)*) => {
        endpoint! {
            ($($($rest)*)?) [$($args)* $arg: ChangeRequest,]
            [$($params)* ChangeOptions, IfMatch,] $($of)*
        }
    };
    (($arg:ident: Name $(, $($rest:tt)*)?) [$($args:tt)*] [$($params:tt)*] $($of:tt)*) => {
        endpoint! {
            ($($($rest)*)?) [$($args)* PathName($arg): PathName,]
            [NamePath, $($params)*] $($of)*
        }
    };
    (($arg:ident: Number $(, $($rest:tt)*)?) [$($args:tt)*] [] $($of:tt)*) => {
        endpoint! {
            ($($($rest)*)?) [$($args)* PathName($arg): PathName<u32>,]
            [("number" = u32, Path)] $($of)*
        }
    };
    (($arg:ident: Path<$type:ident> $(, $($rest:tt)*)?)
        [$($args:tt)*] [$($params:tt)*] $($of:tt)*) => {
        endpoint! {
            ($($($rest)*)?) [$($args)* PathName($arg): PathName<$type>,]
            [$type, $($params)*] $($of)*
        }
    };
    (($arg:ident: Query<$type:ident> $(, $($rest:tt)*)?)
        [$($args:tt)*] [$($params:tt)*] $($of:tt)*) => {
        endpoint! {
            ($($($rest)*)?) [$($args)* Filter($arg): Filter<$type>,]
            [$($params)* $type,] $($of)*
        }
    };
    (($arg:ident: Headers $(<$type:ident>)? $(, $($rest:tt)*)?)
        [$($args:tt)*] [$($params:tt)*] $($of:tt)*) => {
        endpoint! {
            ($($($rest)*)?) [$($args)* $arg: axum::http::HeaderMap,]
            [$($params)* $($type,)?] $($of)*
        }
    };
    (($arg:ident: Body<$type:ident $(, $max:ident)?> $(, $($rest:tt)*)?)
        [$($args:tt)*] $params:tt [] $($of:tt)*) => {
        endpoint! {
            ($($($rest)*)?) [$($args)* Document($arg): Document<$type $(, $max)?>,]
            $params [request_body = $type,] $($of)*
        }
    };
    (() $args:tt $params:tt $body:tt {
        $(#[$doc:meta])* $method:ident $path:literal $name:ident
        [$status:literal $($type:ident)?] $do:block
    }) => {
        endpoint! { () $args $params $body {
            $(#[$doc])* $method $path $name [((status = $status $(, body = $type)?))] $do
        } }
    };
    (() [$($args:tt)*] [$($params:tt)*] [$($body:tt)*] {
        $(#[$doc:meta])* $method:ident $path:literal $name:ident
        [($($responses:tt)*)] $do:block
    }) => {
        $(#[$doc])*
        #[utoipa::path(
            $method,
            path = $path,
            params($($params)*),
            $($body)*
            responses($($responses)*),
        )]
        pub(in crate::server) async fn $name(
            $($args)*
        ) -> $crate::server::requests::HandlerResult<impl axum::response::IntoResponse> $do
    };
}

pub(super) use {endpoint, endpoints};
